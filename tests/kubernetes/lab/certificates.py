"""The certificates of a cluster: who its parts are, by which the API server lets them in."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 30


class Authority:
    """Signs in a folder: ca.crt, and NAME.crt and NAME.key of each part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("minicluster-tests", "")
        certificate = self._signed(self._name, self._key.public_key(), is_ca=True, names=())
        self.file("ca.crt").write_bytes(certificate)
        # Signs the tokens of service accounts.
        _write_key(self.file("accounts.key"), ec.generate_private_key(ec.SECP256R1()))

    def file(self, name: str) -> Path:
        return self.folder / name

    def issue(self, name: str, user: str, group: str = "", names: Sequence[str] = ()) -> tuple[Path, Path]:
        """Make a certificate for a user and these addresses; return its file and its key's."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, secret = self.file(f"{name}.crt"), self.file(f"{name}.key")
        certificate.write_bytes(self._signed(_name(user, group), key.public_key(), is_ca=False, names=names))
        _write_key(secret, key)
        return certificate, secret

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_ca: bool, names: Sequence[str]
    ) -> bytes:
        start = datetime.now(UTC) - timedelta(days=1)
        own = self._key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
            .add_extension(_usage(is_ca), critical=True)
        )
        if not is_ca:
            purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_general, names)), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(user: str, group: str) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(is_ca: bool) -> x509.KeyUsage:
    no = dict.fromkeys(
        (
            "content_commitment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
            "key_encipherment",
            "crl_sign",
        ),
        False,
    )
    return x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, **no)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
