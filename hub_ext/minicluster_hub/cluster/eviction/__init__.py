"""Ends tenants' containers on a node when its disk gets full."""
