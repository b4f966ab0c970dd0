"""What is on the service's disk: logs, blobs, artifacts, and for how long and for whom."""
