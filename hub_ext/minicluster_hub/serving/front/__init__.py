"""What leads requests to replicas: HAProxy on the users' port, or the job service itself."""
