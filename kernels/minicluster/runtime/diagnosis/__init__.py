"""Where ranks are, which make no progress, and which tasks cannot be reached."""
