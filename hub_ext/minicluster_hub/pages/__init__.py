"""The service's pages: handlers, templates, static files."""
