"""Data sets: what users pushed, and which node has which."""
