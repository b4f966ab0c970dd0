"""The engine `swarm`: each task a service of a Docker Swarm, pinned to its node."""
