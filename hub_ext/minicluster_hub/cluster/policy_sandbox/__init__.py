"""The container in which a lab's own policies run."""
