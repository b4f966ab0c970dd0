"""The images that this cluster offers: which run, what the registry says of them, and publishing new ones."""
