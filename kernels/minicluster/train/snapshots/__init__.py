"""What stands behind mc.checkpoint and mc.resume: whole snapshots, on each node and in the job's storage.

`store` knows no torch: the agent uses it as well.
"""
