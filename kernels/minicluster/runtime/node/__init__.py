"""What runs once on each node: the agent for data sets, and readings of its GPUs."""
