"""A cluster with one command: up, down, upgrade, status, doctor, and the programs of its services."""
