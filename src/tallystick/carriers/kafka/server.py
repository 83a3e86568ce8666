"""The Kafka carrier at a node: a gateway, with guards in front and Kafka behind, or a notary alone."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from tallystick.carriers.carrier import Can
from tallystick.carriers.kafka.anchorer import KafkaAnchorer, convict
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.credentials import PATH, Credentials, client_settings
from tallystick.carriers.kafka.ledger import NotaryLedger
from tallystick.carriers.kafka.notary import Notary
from tallystick.carriers.kafka.passage import sign_passages
from tallystick.carriers.kafka.reconcile import Reconciler
from tallystick.carriers.kafka.shared import Shared
from tallystick.carriers.kafka.storage import KafkaIndex, KafkaStorage
from tallystick.carriers.kafka.topics import KafkaTopics
from tallystick.carriers.kafka.turns import Turns
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.errors import Misuse
from tallystick.runtime.disk import Disk
from tallystick.runtime.entropy import SystemEntropy

CAN = (Can.SENDING | Can.READING) & ~Can.RETIRE  # of a gateway; Kafka's retention is off on sealed topics


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    kafka, node = open_client(settings), host.signer
    ledger = NotaryLedger(host)
    index = KafkaIndex(disk, host.limits.lanes_max)  # grows behind the ledger: shorter perhaps than what is anchored
    shared, sealed = Shared(kafka, host.rules), KafkaTopics(kafka, index, ledger.is_anchored)
    storage = KafkaStorage(
        kafka, index, sealed, shared, lambda hashes: sign_passages(node.principal, host.block()[0], hashes, node.key)
    )
    front = host.front(storage, index.journal, host.anchors())
    notary = Notary(
        *(kafka, index, host.rules, front.live, front.deposits, host.limits),
        node_key=host.rules.node_key,
        contradicted=partial(convict, front),
    )
    reconciler, turns = Reconciler(kafka, ledger.wanted), Turns(node.principal)
    anchorer = KafkaAnchorer(front, storage, notary, sealed, shared, reconciler, ledger, turns)
    for_clients = settings.carrier_settings.get("kafka_client_settings", "")
    credentials = Credentials(kafka, host.rules, lambda: client_settings(for_clients), SystemEntropy())
    return Served(front, anchorer, {PATH: credentials.issue})


def open_client(settings: CarrierSettings) -> KafkaClient:
    given: dict[str, str] = {}
    if path := settings.carrier_settings.get("kafka_settings"):
        try:
            given = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise Misuse(f"{path}: not a JSON file of Kafka settings: {error}") from error
    return KafkaClient({"bootstrap.servers": settings.carrier.removeprefix("kafka://"), **given})
