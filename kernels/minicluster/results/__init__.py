"""Reads a job's result, unpickles it and puts it into the notebook."""
