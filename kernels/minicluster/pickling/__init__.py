"""Pickles between the notebook and the ranks, with large parts stored separately."""
