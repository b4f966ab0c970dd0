"""Queues of others in a Kubernetes cluster, which decide when a job starts: Kueue, Volcano."""
