"""Data sets from the notebook's side: pushing a folder to the cluster, and the commands about it."""
