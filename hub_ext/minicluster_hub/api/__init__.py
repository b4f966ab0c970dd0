"""The service's doors: REST, event streams and pages; nothing is decided here."""
