"""The images of this cluster: which ones jobs may run, their data in the registry, publishing new ones."""
