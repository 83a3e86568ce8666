"""The Kafka carrier at a node: a gateway, with guards in front and Kafka behind, or a notary alone."""

from __future__ import annotations

from functools import partial

from tallystick.carriers.carrier import Can
from tallystick.carriers.kafka.anchorer import KafkaAnchorer, Turns, convict
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.kafka.credentials import PATH, Credentials, read_settings
from tallystick.carriers.kafka.ledger import NotaryLedger
from tallystick.carriers.kafka.notary import Notary
from tallystick.carriers.kafka.passage import sign_passages
from tallystick.carriers.kafka.reconcile import KafkaTopics, Reconciler
from tallystick.carriers.kafka.shared import Shared
from tallystick.carriers.kafka.storage import KafkaIndex, KafkaStorage
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.runtime.disk import Disk
from tallystick.runtime.sources import SystemEntropy

CAN = (Can.SENDING | Can.READING) & ~Can.RETIRE  # of a gateway; Kafka's retention is off on sealed topics


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    given, node, ledger = settings.carrier_settings, host.signer, NotaryLedger(host)
    own = read_settings(given["kafka_settings"]) if given.get("kafka_settings") else {}
    kafka = KafkaClient({"bootstrap.servers": settings.carrier.removeprefix("kafka://"), **own})
    index = KafkaIndex(disk, host.limits.lanes_max)  # grows behind the ledger: shorter perhaps than what is anchored
    shared, sealed = Shared(kafka, host.rules), KafkaTopics(kafka, index, ledger.is_anchored)
    storage = KafkaStorage(
        kafka, index, sealed, shared, lambda hashes: sign_passages(node.principal, host.block()[0], hashes, node.key)
    )
    front = host.front(storage, index.journal, host.anchors())
    notary = Notary(kafka, index, host.rules, front.live, front.deposits, host.limits, partial(convict, front))
    reconciler, turns = Reconciler(kafka, ledger.wanted), Turns(node.principal)
    anchorer = KafkaAnchorer(front, storage, notary, sealed, shared, reconciler, ledger, turns)
    credentials = Credentials(kafka, host.rules, given.get("kafka_client_settings", ""), SystemEntropy())
    return Served(front, anchorer, {PATH: credentials.issue})
