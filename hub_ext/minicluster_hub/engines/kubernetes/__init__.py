"""The engine `kubernetes`: each task a pod, whose node our own plan chooses."""
