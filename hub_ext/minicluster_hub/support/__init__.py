"""Utilities that know nothing of jobs: a clock, notifications, rates, TLS, processes."""
