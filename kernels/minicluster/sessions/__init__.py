"""Sessions of a notebook: ranks that stay with their variables, from `%distribute up` to `down`."""
