"""The job service of Minicluster, a JupyterHub service."""
