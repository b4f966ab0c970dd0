"""What a cell says of its training: the framework."""
