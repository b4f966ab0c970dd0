"""What stands behind mc.checkpoint and mc.resume: whole snapshots, on each node and in the job's storage.

`shelf` and `archive` know no torch: the agent uses them as well.
"""
