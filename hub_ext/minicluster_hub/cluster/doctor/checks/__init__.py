"""Checks: facts in, findings out. Each module lists its checks in CHECKS, in the order of repair."""
