"""The images of this cluster: the catalogue of those that jobs may run, the registry, publishing."""
