"""Limits what users' containers reach on the machines' network."""
