"""The files on the service's disk: blobs and logs, how long they are kept, and how much each user may
keep."""
