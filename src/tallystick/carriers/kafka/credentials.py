"""How a principal becomes known to Kafka: it asks the notary, with its certificate, and gets a password of its own.

The password is drawn here, told to Kafka's SCRAM, and sealed to the principal's enrolled key: neither TLS nor this
node's log ever shows it. Asking again gives another one and ends the old. A principal that is blacklisted, or whose
certificate is over, gets none. Having a password allows nothing: rights come from the ledger (`reconciler`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick import wire
from tallystick.crypto import hpke
from tallystick.errors import Forged, Misuse, Refused
from tallystick.guards.rules import Act, Rules, check_principal
from tallystick.runtime.sources import Entropy
from tallystick.trust.certificate import Certificate, SubjectKind

if TYPE_CHECKING:
    from tallystick.carriers.kafka.client import KafkaClient

INFO = "tallystick kafka credentials 1"
PATH = "/v1/kafka/credentials"


class Credentials:
    """The JSON file at `path` has what every client of this Kafka needs (librdkafka's words), without user and
    password."""

    def __init__(
        self, kafka: KafkaClient, rules: Rules, block: Callable[[], tuple[int, int]], path: str, entropy: Entropy
    ) -> None:
        """`block` tells height and time of the newest block."""
        self._kafka, self._rules, self._block, self._path, self._entropy = kafka, rules, block, path, entropy

    def issue(self, principal: bytes, certificate: bytes) -> bytes:
        """Settings with a new password, sealed to the principal. Raises `Refused`."""
        shown = Certificate.decode(certificate)
        authority = self._rules.authority(shown.issuer)
        if shown.kind is not SubjectKind.PRINCIPAL or shown.subject != principal or authority is None:
            raise Refused("the certificate is not the caller's", reason="wrong-certificate")
        shown.verify_issued_by(authority)
        check_principal(self._rules, Act(principal, "", b"", self._block()[1]))
        password = self._entropy.bytes(32).hex()
        self._kafka.make_user(principal.hex(), password.encode())
        settings = {
            **client_settings(self._path),
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": principal.hex(),
            "sasl.password": password,
        }
        return hpke.seal(hpke.PublicKey.decode(shown.sealing_key), json.dumps(settings).encode(), info(principal))


def open_credentials(sealed: bytes, principal: bytes, key: hpke.PrivateKey) -> dict[str, str]:
    """What the notary sealed for this principal."""
    try:
        settings: dict[str, str] = json.loads(hpke.open_(key, sealed, info(principal)))
    except ValueError as error:
        raise Forged("kafka credentials: not settings") from error
    return settings


def info(principal: bytes) -> bytes:
    return wire.encode([INFO, principal])


def client_settings(path: str) -> dict[str, str]:
    """The settings for clients in a JSON file of the node's; certificates that it names are read into it, so that they
    travel."""
    if not path:
        raise Misuse("this node hands out no way to Kafka", hint="set kafka_client_settings in node.toml")
    return read_settings(path, with_certificates=True)


def read_settings(path: str, *, with_certificates: bool = False) -> dict[str, str]:
    """Kafka's settings in a JSON file, with the certificates that it names if they shall travel."""
    try:
        settings: dict[str, str] = json.loads(Path(path).read_text())
        if with_certificates and "ssl.ca.location" in settings:
            settings["ssl.ca.pem"] = Path(settings.pop("ssl.ca.location")).read_text()
    except (OSError, ValueError) as error:
        raise Misuse(f"{path}: not a JSON file of Kafka settings: {error}") from error
    return settings
