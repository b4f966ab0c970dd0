"""Certificates: makes self-signed ones, and checks those that a lab gives.

The authority's key is deleted after its signature, so nobody can forge a certificate later. A renewal makes
both the authority and the certificate again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from minicluster_hub.cluster.errors import ClusterError

BROWSER_DAYS, INTERNAL_DAYS = 825, 3650
"""Validity of a server's certificate in days: browsers refuse more than 825, our relay does not."""

_CLOCK_SKEW = timedelta(days=1)


class CertificateUnusable(ClusterError):
    """A certificate or key cannot be used for these names; the text says why and what to do."""


@dataclass(frozen=True)
class Certificates:
    """ca_pem: the authority that clients trust. cert_pem, key_pem: the server's certificate and key."""

    ca_pem: str
    cert_pem: str
    key_pem: str


def make_ca_and_cert(
    names: Sequence[str], days: int = BROWSER_DAYS, *, also_client: bool = False
) -> Certificates:
    """Make an authority and one server certificate for these DNS names and IP addresses.

    also_client: it is also a client certificate.
    """
    start = datetime.now(UTC) - _CLOCK_SKEW
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = _name("Minicluster authority")
    ca = (
        _builder(issuer, issuer, ca_key, start, INTERNAL_DAYS + 1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if also_client else [])]
    cert = (
        _builder(_name("minicluster"), issuer, key, start, min(days, INTERNAL_DAYS + 1))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(map(_general_name, names)), critical=False)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    key_format = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Certificates(
        ca_pem=_pem(ca),
        cert_pem=_pem(cert) + _pem(ca),
        key_pem=key.private_bytes(*key_format, serialization.NoEncryption()).decode(),
    )


def check_pair(cert_pem: str, key_pem: str, names: Sequence[str]) -> None:
    """Raise CertificateUnusable unless this certificate and key can serve these names now."""
    cert = _load_cert(cert_pem)
    if cert.public_key() != _load_key(key_pem).public_key():
        raise CertificateUnusable(
            "The key does not belong to the certificate. Give the key that the certificate was made with; "
            "in a file with a chain, the server's own certificate stands first."
        )
    _check_time(cert, datetime.now(UTC))
    missing = [name for name in names if not _covers(cert, name)]
    if missing:
        raise CertificateUnusable(
            f"The certificate is made for {', '.join(_shown_names(cert))}, not for {', '.join(missing)}. "
            "Its subject alternative names must have the names that people type in browsers."
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(cert: x509.Certificate) -> str:
    return cert.public_bytes(serialization.Encoding.PEM).decode()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, start: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _general_name(name: str) -> x509.GeneralName:
    address = _address(name)
    return x509.IPAddress(address) if address else x509.DNSName(name.encode("idna").decode())


def _load_cert(cert_pem: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(cert_pem.encode())[0]
    except ValueError as error:
        raise CertificateUnusable(
            "The certificate cannot be read. It has to be PEM text that begins with "
            "-----BEGIN CERTIFICATE-----; a .pfx or .der file has to be converted with openssl."
        ) from error


def _load_key(key_pem: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(key_pem.encode(), password=None)
    except TypeError as error:
        raise CertificateUnusable(
            "The key is locked by a password. Give it without: openssl pkey -in KEY -out KEY.open"
        ) from error
    except Exception as error:
        raise CertificateUnusable(
            "The key cannot be read. It has to be PEM text that begins with -----BEGIN PRIVATE KEY-----."
        ) from error


def _check_time(cert: x509.Certificate, now: datetime) -> None:
    if now > cert.not_valid_after_utc:
        raise CertificateUnusable(
            f"The certificate expired on {cert.not_valid_after_utc:%Y-%m-%d}. Renew it."
        )
    if now < cert.not_valid_before_utc:
        raise CertificateUnusable(
            f"The certificate is good only from {cert.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on, "
            f"and this machine's clock says {now:%Y-%m-%d %H:%M}. Set the clock, or wait."
        )


def _alternative_names(cert: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def _covers(cert: x509.Certificate, name: str) -> bool:
    held = _alternative_names(cert)
    address = _address(name)
    if address:
        return address in held.get_values_for_type(x509.IPAddress)
    wanted = name.encode("idna").decode().lower()
    patterns = {pattern.lower() for pattern in held.get_values_for_type(x509.DNSName)}
    return wanted in patterns or f"*.{wanted.partition('.')[2]}" in patterns


def _shown_names(cert: x509.Certificate) -> list[str]:
    held = _alternative_names(cert)
    names = [*held.get_values_for_type(x509.DNSName), *map(str, held.get_values_for_type(x509.IPAddress))]
    return names or ["no name at all"]
