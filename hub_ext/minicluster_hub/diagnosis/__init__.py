"""Finds where ranks are and why a job is stuck, from their stacks; pure."""
