"""TLS between the job service and what calls it inside the cluster.

The cluster's authority signed one certificate, that of the job service, and its key is gone. So whoever shows
that certificate is a job service: agents see by it whom they speak to, and one job service lets another in.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True)
class ServiceTls:
    """Files: the certificate and its key, which both ends of two job services show, and the authority's."""

    cert_file: str
    key_file: str
    ca_file: str

    def server(self) -> ssl.SSLContext:
        """Return what listens: agents come without a certificate. Raises OSError."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.num_tickets = 0  # agents keep their connections
        return context

    def client(self) -> ssl.SSLContext:
        """Return what asks another job service. Raises OSError."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the authority signed nothing else
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.cert_file, self.key_file)
        context.load_verify_locations(self.ca_file)
        return context
