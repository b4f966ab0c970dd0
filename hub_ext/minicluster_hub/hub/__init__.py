"""JupyterHub's side: the configuration of a hub in a Swarm, its templates, its DNS client."""
