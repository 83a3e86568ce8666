"""The Kafka carrier at a node: a gateway, with guards in front and Kafka behind, or a notary alone."""

from __future__ import annotations

import logging
import time
from functools import partial

from tallystick.carriers.carrier import Can
from tallystick.carriers.kafka.anchorer import KafkaAnchorer, Turns, convict, lies
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.credentials import PATH, Credentials, read_settings
from tallystick.carriers.kafka.ledger import NotaryLedger
from tallystick.carriers.kafka.notary import Notary
from tallystick.carriers.kafka.passage import sign_passages
from tallystick.carriers.kafka.reconcile import KafkaTopics, Reconciler
from tallystick.carriers.kafka.shared import Shared
from tallystick.carriers.kafka.storage import KafkaIndex, KafkaStorage
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.errors import Misuse, Unavailable
from tallystick.runtime.disk import Disk
from tallystick.runtime.sources import SystemEntropy

log = logging.getLogger(__name__)

LOOK_S = 3.0  # how long brokers that are away at the start have to answer, and until they are asked again
CAN = (Can.SENDING | Can.READING) & ~Can.RETIRE  # of a gateway; Kafka's retention is off on sealed topics


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    given, node, ledger = settings.carrier_settings, host.signer, NotaryLedger(host)
    kafka = KafkaClient(_settings(settings))
    shared = _reach(kafka, host)
    index = KafkaIndex(disk, host.limits.lanes_max)  # grows behind the ledger: shorter perhaps than what is anchored
    sealed = KafkaTopics(kafka, index, ledger.is_anchored)
    storage = KafkaStorage(
        kafka, index, sealed, shared, lambda hashes: sign_passages(node.principal, host.block()[0], hashes, node.key)
    )
    front = host.front(storage, index.journal, host.anchors())
    while front.heads.index.build():  # the notary waits for no run that is missing
        pass
    asks = partial(convict, front), partial(lies, front)
    notary = Notary(kafka, index, host.rules, front.live, front.deposits, host.limits, *asks)
    reconciler, turns = Reconciler(kafka, ledger.wanted), Turns(node.principal)
    anchorer = KafkaAnchorer(front, storage, notary, sealed, shared, reconciler, ledger, turns)
    credentials = Credentials(kafka, host.rules, host.block, given.get("kafka_client_settings", ""), SystemEntropy())
    return Served(front, anchorer, {PATH: credentials.issue})


def _settings(settings: CarrierSettings) -> dict[str, str]:
    """How this node reaches Kafka and is known to it. Raises `Misuse` where URL and file name different brokers: one of
    them would have no effect."""
    address, file = settings.carrier.removeprefix("kafka://"), settings.carrier_settings.get("kafka_settings")
    own = read_settings(file) if file else {}
    named = own.get("bootstrap.servers", address)
    if _brokers(named) != _brokers(address):
        raise Misuse(
            f'carrier kafka://{address}: {file} names other brokers, bootstrap.servers "{named}"',
            hint=f"--carrier kafka://{named} (or carrier in node.toml), or take bootstrap.servers out of the file",
        )
    return {"bootstrap.servers": address, **own}


def _brokers(address: str) -> set[str]:
    return {one.strip() for one in address.split(",")}


def _reach(kafka: KafkaClient, host: CarrierHost) -> Shared:
    """Wait until Kafka answers, and say so once. Returns what gateways share there; what does not pass by itself, a
    wrong password say, is raised."""
    told = False
    while True:
        try:
            kafka.broker_count(LOOK_S)
            return Shared(kafka, host.rules)
        except Unavailable as error:
            if not told:
                log.warning("%s; the node waits until a broker answers, and then goes on: %s", error, error.hint)
            told = True
            time.sleep(LOOK_S)
