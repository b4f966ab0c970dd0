"""What ranks log: kept at full resolution in one file per run, and read at the resolution of a picture."""
