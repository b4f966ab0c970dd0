"""Certificates: a real TLS handshake with ours, and clear messages about a site's own."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from minicluster_hub.cluster.plan.certificates import (
    Certificates,
    CertificateUnusable,
    check_pair,
    make_ca_and_cert,
)


@pytest.fixture(scope="module")
def made() -> Certificates:
    return make_ca_and_cert(["lab.example.org", "*.lab.example.org", "127.0.0.1", "fd00::1"])


def handshake(tmp_path: Path, made: Certificates, name: str) -> str:
    """Shake hands over real sockets as a client that trusts only our authority; return the TLS version."""
    (tmp_path / "cert").write_text(made.cert_pem)
    (tmp_path / "key").write_text(made.key_pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(far, server_side=True).close()
        except (ssl.SSLError, OSError):
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client = ssl.create_default_context(cadata=made.ca_pem)
        with client.wrap_socket(near, server_hostname=name) as wrapped:
            return wrapped.version() or ""
    finally:
        near.close()
        thread.join()


@pytest.mark.parametrize("name", ["lab.example.org", "hub.lab.example.org", "127.0.0.1", "fd00::1"])
def test_a_client_that_trusts_our_authority_is_served(tmp_path: Path, made: Certificates, name: str) -> None:
    assert handshake(tmp_path, made, name) == "TLSv1.3"
    check_pair(made.cert_pem, made.key_pem, [name])


def test_a_client_that_asks_for_another_name_refuses(tmp_path: Path, made: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, made, "other.example.org")


def test_the_days_are_those_that_browsers_take(made: Certificates) -> None:
    def days(cert_pem: str) -> int:
        cert = x509.load_pem_x509_certificates(cert_pem.encode())[0]
        return (cert.not_valid_after_utc - datetime.now(UTC)).days

    assert 820 <= days(made.cert_pem) <= 825
    assert days(make_ca_and_cert(["a"], days=3650).cert_pem) > 3600


def test_a_missing_name_is_told_with_those_that_are_there(made: Certificates) -> None:
    with pytest.raises(
        CertificateUnusable, match=r"lab\.example\.org.*127\.0\.0\.1.*not for cluster\.example"
    ):
        check_pair(made.cert_pem, made.key_pem, ["cluster.example", "127.0.0.1"])
    with pytest.raises(CertificateUnusable, match=r"not for 10\.0\.0\.1"):
        check_pair(made.cert_pem, made.key_pem, ["10.0.0.1"])
    with pytest.raises(CertificateUnusable, match=r"not for a\.b\.lab"):
        check_pair(made.cert_pem, made.key_pem, ["a.b.lab.example.org"])


def test_a_foreign_key_is_told(made: Certificates) -> None:
    with pytest.raises(CertificateUnusable, match="does not belong"):
        check_pair(made.cert_pem, make_ca_and_cert(["x"]).key_pem, [])


def test_an_expired_certificate_is_told_with_its_date() -> None:
    old = make_ca_and_cert(["x"], days=0)
    with pytest.raises(CertificateUnusable, match=r"expired on \d{4}-\d\d-\d\d"):
        check_pair(old.cert_pem, old.key_pem, ["x"])


def test_a_locked_key_and_what_is_no_pem_are_told(made: Certificates) -> None:
    key = serialization.load_pem_private_key(made.key_pem.encode(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    ).decode()
    with pytest.raises(CertificateUnusable, match="locked by a password"):
        check_pair(made.cert_pem, locked, [])
    with pytest.raises(CertificateUnusable, match="certificate cannot be read"):
        check_pair("\x30\x82", made.key_pem, [])
    with pytest.raises(CertificateUnusable, match="key cannot be read"):
        check_pair(made.cert_pem, "nothing", [])
