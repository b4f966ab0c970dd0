"""Data sets from the notebook's side: a folder brought to the cluster, and the commands about it."""
