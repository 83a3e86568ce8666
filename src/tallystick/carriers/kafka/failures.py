"""What Kafka's errors mean to whoever runs this: one of ours each, with the remedy. Foreign errors end here.

What passes by itself (a broker that is away, replicas that are missing, a full disk) is `Unavailable` and tried again;
what does not (a wrong password, a right that is not there, a version too old) is `Misuse`, and says what to correct.
Kafka has no word for a full disk: a broker that cannot write ends itself, and its clients see one that is away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tallystick.errors import Misuse, TallystickError, Unavailable

LIBRARY_OLDEST = 0x020600FF  # librdkafka 2.6.0: older ones speak versions of the protocol that Kafka 4 has dropped

_AWAY = "start the brokers, or correct bootstrap.servers and security.protocol; a broker whose disk is full ends itself"
_WAITING = "see whether the brokers are up and reachable, and whether their disks are full"
REPLICAS = (
    "bring the missing brokers back; a broker whose disk is full ends itself, and starts again when there is room"
)
_REMEDIES = {
    "_ALL_BROKERS_DOWN": _AWAY,
    "_TRANSPORT": _AWAY,
    "_RESOLVE": "correct the host names in bootstrap.servers",
    "_TIMED_OUT": _WAITING,
    "_MSG_TIMED_OUT": REPLICAS,
    "NOT_ENOUGH_REPLICAS": REPLICAS,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": REPLICAS,
    "LEADER_NOT_AVAILABLE": REPLICAS,
    "KAFKA_STORAGE_ERROR": "make room on the broker's disk, then start the broker again",
    "_UNKNOWN_TOPIC": "the notary makes topics that are on the ledger: start one",
    "UNKNOWN_TOPIC_OR_PART": "the notary makes topics that are on the ledger: start one",
}
FINAL = {
    "_AUTHENTICATION": "check user name, password or certificate in the Kafka settings",
    "SASL_AUTHENTICATION_FAILED": "check user name and password in the Kafka settings",
    "_SSL": "check ssl.ca.location and the client's certificate",
    "TOPIC_AUTHORIZATION_FAILED": "the ledger grants no such right, or the notary has not brought it to Kafka yet",
    "CLUSTER_AUTHORIZATION_FAILED": "this Kafka user may not do that",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "the ledger grants no right to write, or not yet in Kafka",
    "UNSUPPORTED_VERSION": "Kafka 4.0 or newer is needed",
    "_UNSUPPORTED_FEATURE": "Kafka 4.0 or newer is needed",
    "MSG_SIZE_TOO_LARGE": "seal fewer records a parcel",
}


def explain(error: Any, act: str) -> TallystickError:
    message, kind = f"kafka: cannot {act}: {error.str()}", _kind(error)
    if kind in FINAL:
        return Misuse(message, hint=FINAL[kind])
    return Unavailable(message, retry_after_s=1.0, hint=_REMEDIES.get(kind))


def is_final(error: Any) -> bool:
    """Whether it will not pass by itself."""
    return _kind(error) in FINAL


def _kind(error: Any) -> str:
    """The library's name for it. A broker that goes away in the middle of a TLS handshake is an error of TLS to the
    library, and one that wants another certificate an error of the connection: certificates are told by the text."""
    name = str(error.name())
    if name in ("_SSL", "_TRANSPORT"):
        return "_SSL" if "certificate" in error.str().lower() else "_TRANSPORT"
    return name


@contextmanager
def translated(act: str, ignore: Sequence[str] = ()) -> Iterator[None]:
    kafka = library()
    try:
        yield
    except kafka.KafkaException as error:
        cause = error.args[0]
        if cause.name() not in ignore:
            raise explain(cause, act) from error
    except TimeoutError as error:  # of a future: the library had no answer to give yet
        raise Unavailable(f"kafka: cannot {act}: no answer in time", retry_after_s=1.0, hint=_WAITING) from error
    except BufferError as error:
        raise Unavailable("kafka: too many records wait to be sent", retry_after_s=0.2) from error


def library(module: str = "confluent_kafka", oldest: int = LIBRARY_OLDEST) -> Any:
    remedy = "pip install --upgrade 'tallystick[kafka]'"
    try:
        found = import_module(module)
    except ImportError:
        raise Misuse("Kafka needs the package confluent-kafka", hint=remedy) from None
    version, number = import_module("confluent_kafka").libversion()
    if number < oldest:
        raise Misuse(f"Kafka needs librdkafka 2.6 or newer, found {version}", hint=remedy)
    return found
