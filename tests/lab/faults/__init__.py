"""Faults on a cluster, and what the cluster guarantees in spite of them.

`inject` has the faults, `promises` the checks; the tests combine them.
"""
