"""What `%distribute COMMAND` does."""
