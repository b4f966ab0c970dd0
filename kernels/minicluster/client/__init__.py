"""The one HTTP client of a notebook: connecting, credentials, event streams."""
