"""Checks: facts in, findings out. Each module lists its own in CHECKS, in the order of repair."""
