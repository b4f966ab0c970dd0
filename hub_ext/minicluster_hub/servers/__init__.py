"""Notebook servers: their placement, and taking back GPUs that they leave idle."""
