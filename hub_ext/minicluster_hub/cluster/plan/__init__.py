"""A cluster as data: choices in, Docker's services, networks, secrets and volumes out."""
