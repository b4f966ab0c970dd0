"""What users bring along, on a real Swarm: packages, data, files, and their own Jupyter."""
