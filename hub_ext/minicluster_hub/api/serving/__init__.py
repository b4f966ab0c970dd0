"""Served models: what their owners say of them, and the requests to them."""
