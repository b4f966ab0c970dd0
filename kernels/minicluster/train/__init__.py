"""Helpers for cells. None is required: plain PyTorch works. Each works outside of a job, too."""
