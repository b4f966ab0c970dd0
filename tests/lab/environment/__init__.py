"""Users' own packages, data, files and Jupyter, on a real Swarm."""
