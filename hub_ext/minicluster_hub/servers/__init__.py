"""Notebook servers: where they run, and what becomes of GPUs that they do not use."""
