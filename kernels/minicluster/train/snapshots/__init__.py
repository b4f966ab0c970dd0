"""Snapshots for mc.checkpoint and mc.resume: complete ones, on each node and in the job's storage.

`store` does not import torch, since the agent uses it, too.
"""
