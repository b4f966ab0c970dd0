"""Queries about jobs: their gangs, reports, history, snapshots and artifacts."""
