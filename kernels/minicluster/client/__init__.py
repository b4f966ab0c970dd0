"""The notebook's HTTP client: connections, credentials, event streams."""
