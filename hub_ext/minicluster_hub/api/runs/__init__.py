"""The API of runs: the list, curves, media, and where the time of steps goes."""
