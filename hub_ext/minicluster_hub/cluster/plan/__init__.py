"""A cluster as data: from an administrator's choices to Docker's services, networks, secrets and volumes."""
