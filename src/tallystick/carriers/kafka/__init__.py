"""Kafka as a carrier. In come parcels, from the gateway's guards or from clients that write to Kafka themselves; out go
the same bytes, and what the notary says of each offset. `client` is the whole of Kafka that we use, `passage` the
gateway's signed word that its guards took a parcel, `notary` reads, judges, writes anchors and keeps trees and headers,
`carrier` is what a node serves: guards in front, Kafka behind."""

from __future__ import annotations

FILE = "kafka.json"  # in the folder of an identity that has its own way to Kafka
