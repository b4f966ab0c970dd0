"""JupyterHub's side: how the hub of a Swarm is configured, its templates, its DNS."""
