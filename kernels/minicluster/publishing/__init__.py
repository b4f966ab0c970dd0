"""Packages that a user installed with pip: installs them on a job's ranks, or publishes them as an image."""
