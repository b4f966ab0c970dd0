"""The only long-running part with the Docker socket; it limits what hub and job service may do with Docker.

haproxy.cfg lists the methods and paths that pass. A call that creates something carries a document, by which
a service could mount the manager's disk: HAProxy sends it to the gate, which checks the document by rules.
"""
