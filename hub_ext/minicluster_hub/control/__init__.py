"""What acts: the reconciler with its planner and executor, and what they keep in memory."""
