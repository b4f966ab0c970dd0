"""What code written for other trackers calls, pointed at mc.log: change its import, and nothing else."""
