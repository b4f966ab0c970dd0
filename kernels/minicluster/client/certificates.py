"""Trusts a hub's certificate that no public authority signed, by a file or by its fingerprint.

Only this certificate is then trusted. The host name is still checked.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from pathlib import Path

from minicluster.client.address import Address
from minicluster.errors import MiniclusterError

_TIMEOUT_S = 10.0


class CertificateUnknown(MiniclusterError):
    """The hub's certificate is not trusted; nothing was sent to the hub."""


def context_for(pem: str) -> ssl.SSLContext:
    """Trust only these certificates, of authorities or servers. Raises CertificateUnknown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # A server's certificate is enough, even without that of its authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise CertificateUnknown(
            f"These are not certificates: {error}.",
            "A file for --ca is PEM text: it has a line -----BEGIN CERTIFICATE-----.",
        ) from None
    return context


def read_file(path: str) -> str:
    """Return the certificates in a file. Raises CertificateUnknown."""
    try:
        pem = Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        message = f"--ca {path}: {_why_unread(error)}."
        raise CertificateUnknown(message, "Give the file's path, with .pem or .crt.") from None
    context_for(pem)
    return pem


def _why_unread(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it is not text" if isinstance(error, UnicodeDecodeError) else "there is no such user here"


def by_fingerprint(address: Address, fingerprint: str) -> str:
    """Return the hub's certificate if it has this fingerprint. Raises CertificateUnknown."""
    try:
        pem, shown = _shown_by(address)
    except OSError as error:
        raise CertificateUnknown(
            f"{address.host}, port {address.port}, shows no certificate: {error.strerror or error}.",
            "Check the address for a typo. Does the browser open it?",
        ) from None
    wanted = fingerprint.lower().removeprefix("sha256:").replace(":", "").replace(" ", "")
    if wanted != shown.replace(":", "").lower():
        raise CertificateUnknown(
            f"The certificate of {address.host} has another fingerprint than --trust says. Its SHA-256:\n"
            f"{shown}",
            "Compare it with the one that the browser or the hub's admin shows. If they differ, somebody "
            "else may answer in the hub's place.",
        )
    return pem


def refusal(address: Address, error: ssl.SSLCertVerificationError) -> CertificateUnknown:
    """Return an error that says why a certificate is not trusted and how to trust it."""
    why = error.verify_message.rstrip(".")
    try:
        _, shown = _shown_by(address)
    except OSError:
        shown = ""
    message = f"The hub at {address.url} cannot prove who it is: {why}. Nothing was sent to it."
    if not shown or "expired" in why:
        return CertificateUnknown(message, "Ask the hub's admin: its certificate must be renewed.")
    if "mismatch" in why:
        return CertificateUnknown(
            message, "Use the host name with which the browser opens it without a warning."
        )
    return CertificateUnknown(
        f"{message} Its certificate's SHA-256 fingerprint:\n{shown}",
        "Is it the one that the hub's admin gave you, or that the browser shows where you log in (behind the "
        f"lock)? Then: %distribute connect {address.url} --trust {shown.replace(':', '')}\n"
        "Or, with the authority's certificate from the admin: --ca FILE",
    )


def _shown_by(address: Address) -> tuple[str, str]:
    """Return a server's certificate and its fingerprint, without checking the certificate."""
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((address.host, address.port), timeout=_TIMEOUT_S) as plain,
        blind.wrap_socket(plain, server_hostname=address.host) as secured,
    ):
        der = secured.getpeercert(binary_form=True) or b""
    digits = hashlib.sha256(der).hexdigest().upper()
    shown = ":".join(digits[place : place + 2] for place in range(0, len(digits), 2))
    return ssl.DER_cert_to_PEM_cert(der), shown
