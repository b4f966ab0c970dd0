"""A proxy before Docker that limits the calls of hub and job service.

They have no Docker socket. Only this proxy, on managers, and the disk guard (cluster/eviction), on each node,
have it for long. haproxy.cfg lists the allowed methods and paths. A call that creates an object has a
document, which could make a service mount the manager's disk: HAProxy sends it to the gate, which checks it
by rules.
"""
