"""A job's result: read, unpickled and put into the notebook."""
