"""What a user installed with pip: found, taken along to a job's tasks, or published as an image."""
