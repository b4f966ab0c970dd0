"""Objects between the notebook and the ranks: one pickle, large parts apart."""
