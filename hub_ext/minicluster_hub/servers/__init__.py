"""Notebook servers: places them, and takes back GPUs that they leave idle."""
