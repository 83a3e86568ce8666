"""Certificates of a development cluster: one authority, made with the cluster and forgotten with it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = timedelta(days=365)


class Certificates:
    """`folder/ca.pem`, and for each name `folder/<name>.pem`: key and certificates, as Kafka and OpenSSL read them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tallystick development")])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        authority = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        self._certificate = authority.sign(self._key, hashes.SHA256())
        self.authority.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str) -> Path:
        """A certificate for `name`, good for servers and clients on 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        alternatives = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
        certificate = self._builder(subject, key).add_extension(alternatives, critical=False)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for part in (certificate.sign(self._key, hashes.SHA256()), self._certificate):
            pem += part.public_bytes(serialization.Encoding.PEM)
        path = self.folder / f"{name}.pem"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(pem)
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + VALID)
        )
