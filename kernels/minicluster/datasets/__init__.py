"""Data sets in the notebook: pushes folders to the cluster, and has the commands of `%distribute data`."""
