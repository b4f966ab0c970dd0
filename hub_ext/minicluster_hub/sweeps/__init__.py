"""Sweeps: searches for good parameters, whose trials are jobs. Optuna is imported with the first sweep."""
