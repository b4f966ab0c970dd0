"""Helpers for cells. They are optional, since plain PyTorch works, and also work outside of a job."""
