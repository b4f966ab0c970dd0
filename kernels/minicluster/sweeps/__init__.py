"""%%sweep: runs a cell as the trials of a search for good parameters."""
