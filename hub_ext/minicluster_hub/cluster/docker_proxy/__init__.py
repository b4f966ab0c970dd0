"""The only part of the platform that holds the Docker socket, and what hub and job service may do with it.

haproxy.cfg lists the methods and paths that pass. A call that creates something carries a document, by which
a service could mount the manager's disk: HAProxy sends it to the gate, which checks the document by rules.
"""
