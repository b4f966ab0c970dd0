"""Notebook servers as pods of Kubernetes, by KubeSpawner."""
