"""The control loop: the reconciler with its planner and executor, and their state in memory."""
