"""Packages that a user installed with pip: installed on a job's ranks, or published as an image."""
