"""Queries about people: quotas, reservations, policies, notices, notebook servers."""
