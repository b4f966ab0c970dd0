"""The files on the service's disk: blobs and logs, their retention, and users' quotas."""
