"""A cluster by one command: up, down, upgrade, status, doctor, and what runs in its services."""
