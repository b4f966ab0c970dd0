"""Data sets in the notebook: the push of a folder to the cluster, and the commands of `%distribute data`."""
