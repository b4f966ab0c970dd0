"""Stands between Docker and the hub and job service; limits which calls they may make.

They have no Docker socket themselves. Only this proxy, on managers, and the disk guard (cluster/eviction), on
each node, run with it for long. haproxy.cfg lists the methods and paths that pass. A call that creates
something carries a document, by which a service could mount the manager's disk: HAProxy sends it to the gate,
which checks the document by rules.
"""
