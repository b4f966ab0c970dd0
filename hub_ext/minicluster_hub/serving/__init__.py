"""Served models: their versions, the replicas that answer, and the front that leads requests to these."""
