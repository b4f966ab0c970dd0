"""`minicluster simulate`: what other policies would do with jobs of a trace, on the terminal."""
