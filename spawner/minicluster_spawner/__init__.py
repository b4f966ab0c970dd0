"""Notebook servers on the cluster's nodes."""
