"""Code that runs once per node: the data set agent, and measurements of the node's GPUs."""
