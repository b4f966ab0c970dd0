"""The only part of the platform that holds the Docker socket, and what hub and job service may do with it.

HAProxy looks at each call's method and path. A call that makes something carries a document, by which a
service could mount the manager's disk: such a call goes on through the gate.
"""
