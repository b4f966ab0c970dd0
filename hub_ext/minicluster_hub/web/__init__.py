"""What all handlers share: authentication, limits, errors, files, declared routes."""
