"""TLS 1.3 between parties that know each other's Ed25519 keys, and nothing else of each other.

Threat: whoever stands between two parties, or calls one of them, and claims to be the other. What counts is the key
that a directory pins to a name: no authority, no host name and no date is believed.

Python's TLS asks a client for its certificate only if it can check it against a store of certificates, and a directory
has keys. So the certificate of a key is a function of the key: every field is fixed but the key and its hex as the
subject's name, and the issuer is a key that everybody knows, whose Ed25519 signature is deterministic. Each side makes
the certificates of all keys in its directory and trusts exactly these (`VERIFY_X509_PARTIAL_CHAIN`: the certificate
itself ends the chain). The issuer's own certificate is in no store, so what else anybody signs with its key is worth
nothing; that a party holds the private key of the certificate that it shows, it proves in the handshake, whose
signature OpenSSL checks on both sides. Behind the handshake the caller compares the certificate that was shown with
the one of the party that it meant (`shows`), since the store says only that it is some party of the directory.

There is no resumption, by which a party could come back without showing its certificate after it left the directory.
"""

from __future__ import annotations

import ssl
import tempfile
from asyncio import BaseTransport
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.runtime.sources import Entropy

_ISSUER_SEED = bytes(32)  # everybody's, so that everybody can make the certificate of a key
_FOREVER = (datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59))


@lru_cache(maxsize=4096)
def certificate_of(key: bytes) -> bytes:
    """The certificate of a public key, in DER. Raises `Malformed` if `key` is none, or a point of small order."""
    VerifyKey(key)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_named(key.hex()))
        .issuer_name(_named("tallystick link 1"))
        .serial_number(1)
        .not_valid_before(_FOREVER[0])
        .not_valid_after(_FOREVER[1])
        .public_key(Ed25519PublicKey.from_public_bytes(key))
    )
    return builder.sign(Ed25519PrivateKey.from_private_bytes(_ISSUER_SEED), None).public_bytes(Encoding.DER)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def shows(transport: BaseTransport, key: bytes) -> bool:
    """Whether the party at the other end proved in its handshake that it holds this key."""
    connection = transport.get_extra_info("ssl_object")
    return connection is not None and connection.getpeercert(True) == certificate_of(key)


class PinnedTls:
    """One party's link key, and the TLS that it speaks."""

    def __init__(self, seed: bytes, entropy: Entropy) -> None:
        """`seed` is the private key, for this purpose alone. Raises `Malformed` if it is none.

        Python reads keys from files only: what is written to a temporary one is encrypted, under a password that never
        leaves the process.
        """
        self.public = SigningKey.from_seed(seed).public.raw
        key = Ed25519PrivateKey.from_private_bytes(seed)
        self._password = entropy.bytes(32).hex()
        encryption = BestAvailableEncryption(self._password.encode())
        self._pem = ssl.DER_cert_to_PEM_cert(certificate_of(self.public)).encode()
        self._pem += key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)

    def contexts(self, keys: Iterable[bytes]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For calling and for being called; the other side must hold one of `keys`."""
        calling, called = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        called.num_tickets = 0
        pinned = b"".join(map(certificate_of, keys))
        with tempfile.NamedTemporaryFile() as file:
            file.write(self._pem)
            file.flush()
            for context in (calling, called):
                context.minimum_version = ssl.TLSVersion.TLSv1_3
                context.check_hostname = False
                context.verify_mode = ssl.CERT_REQUIRED
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
                context.load_cert_chain(file.name, password=self._password)
                if pinned:  # an empty store trusts nobody
                    context.load_verify_locations(cadata=pinned)
        return calling, called
