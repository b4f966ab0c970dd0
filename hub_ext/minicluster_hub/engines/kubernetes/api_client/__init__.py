"""The Kubernetes API: requests, paths, and what is watched."""
