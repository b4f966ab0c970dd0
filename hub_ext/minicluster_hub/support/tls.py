"""TLS between the job service and its clients inside the cluster.

The cluster's authority signed only the job service's certificate, and the authority's key was deleted. So the
owner of that certificate is a job service. Agents and other job services verify it.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True)
class ServiceTls:
    """Paths of the job service's certificate, of its key, and of the authority's certificate."""

    cert_file: str
    key_file: str
    ca_file: str

    def server(self) -> ssl.SSLContext:
        """Return the context of the agents' port; agents have no certificate. Raises OSError."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.num_tickets = 0  # agents keep their connections
        return context

    def client(self) -> ssl.SSLContext:
        """Return the context for calls to another job service. Raises OSError."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the authority signed only this certificate
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.cert_file, self.key_file)
        context.load_verify_locations(self.ca_file)
        return context
