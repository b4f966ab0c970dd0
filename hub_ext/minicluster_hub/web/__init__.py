"""What all handlers share: login, limits, errors, files, routes as data."""
