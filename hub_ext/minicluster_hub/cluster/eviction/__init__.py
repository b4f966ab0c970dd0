"""Ends tenants' containers on a node whose disk gets full."""
