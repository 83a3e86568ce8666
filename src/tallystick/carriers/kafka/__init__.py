"""Kafka as a carrier. In come parcels, from the gateway's guards or from clients that write to Kafka themselves; out go
the same bytes, and what the notary says of each offset. `client`, `administration` and `consumers` are the whole of
Kafka that we use, `passage` is the gateway's signed word that its guards took a parcel. `storage` keeps headers, voids
and trees beside Kafka, `notary` judges what lies there, `anchorer` writes anchors, `reconcile` holds Kafka to the
ledger. `server` is what a node serves, `direct` a client's own way."""

from __future__ import annotations

FILE = "kafka.json"  # in the folder of an identity that has its own way to Kafka
