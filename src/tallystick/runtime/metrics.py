"""Statistics as Prometheus reads them. Imported by whoever is asked for them first: many processes never are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tallystick.runtime.counting import BOUNDS_S, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4"

# What each number counts, and in which unit, by part and name. "Since the start" is that of the process.
HELP = {
    "node": {"disk_free_bytes": "Bytes free on the disk of the node's log; below 64 MiB it refuses publishers."},
    "requests": {
        "duration_s": "Seconds from a request to its answer, by route; long polls wait for news in theirs.",
        "refused": "Requests refused since the start, by reason; all that nobody signed under one.",
    },
    "groups": {
        "known": "Groups of readers that the ledger knows; those of a mesh are not on it.",
        "lag_parcels": "Parcels at this node that a group has not done with, by its pseudonym; most groups as one sum.",
    },
    "ledger": {
        "height": "Height of the newest block: blocks since the genesis.",
        "time_ms": "Time of the newest block, in milliseconds since 1970; one that is old means a ledger at a stop.",
        "transactions": "Transactions on the ledger since its genesis.",
        "waiting_entries": "Entries that wait for the next block.",
        "published_height": "Height of the newest block with every signature that the trust file demands.",
        "entries": "Entries that the ledger took since the start.",
        "refusals": "Transactions that the ledger refused since the start, by reason.",
        "head_age_s": "Seconds since the newest block was made; one that is old means a ledger at a stop.",
        "commit_s": "Seconds from a transaction of this node to the block that holds it.",
    },
    "log": {
        "partitions": "Partitions that this node keeps.",
        "segments": "Files in which these partitions lie.",
        "entries": "Parcels in these partitions, with those that were retired.",
        "stored_bytes": "Bytes of parcels on the disk; on Kafka, of what is kept beside it.",
        "blobs": "Permits, undo orders and locks that this node keeps.",
        "staged_parcels": "Parcels that wait for the next write to the disk.",
        "staged_bytes": "Bytes of the parcels that wait for the next write to the disk.",
        "groups": "Writes to the disk since the start, each of all parcels that waited.",
        "parcels": "Parcels written to the disk since the start.",
        "failures": "Writes to the disk that failed since the start, each with all parcels that waited.",
        "journal_bytes": "Bytes of the journal on the disk.",
        "journal_pending": "Operations that are in the journal, and not on the ledger yet.",
        "cuts": "Partitions whose torn end was cut off at the start: writes that nobody was promised.",
        "damages": "Partitions that were found damaged at the start: the log names them.",
    },
    "carrier": {
        "accepted": "Parcels that were taken and stored since the start.",
        "refused": "Parcels that came since the start and were not taken, by reason.",
        "store_s": "Seconds from a group of parcels before the guards until it is on the disk.",
        "operations_waiting": "Operations that wait to be written to the ledger.",
        "envelopes_remembered": "Signed requests that are remembered, so that none counts twice.",
        "lanes": "Lanes whose newest sequence is in memory.",
        "partitions_anchored": "Partitions with an anchor on the ledger.",
        "anchors_aside": "Partitions that have grown, and whose anchors the ledger does not take from this node.",
    },
    "anchorer": {
        "records_taken": "Records in Kafka that the notary took since the start.",
        "records_refused": "Records in Kafka that the notary refused since the start, by reason.",
        "records_waiting": "Records that were read from Kafka and wait to be judged.",
        "bytes_waiting": "Bytes of the records that wait to be judged.",
        "drifts_waiting": "Changes in Kafka that were found, and are not on the ledger yet.",
        "partitions_behind": "Partitions in which another notary's anchors are yet to be taken over.",
        "partitions_aside": "Partitions whose anchor the ledger refused; they are tried again after ten seconds.",
        "pushed_refused": "Parcels that were pushed to this node since the start, and not kept.",
    },
    "authority": {
        "ready": "1 where the authority serves, 0 where it cannot: /health/ready says why.",
        "height": "Height of the newest checkpoint that the authority has followed; -1 before the first.",
        "head_age_s": "Seconds since the newest block that the authority has seen was made.",
        "tenants": "Tenants of this authority.",
        "principals": "Principals that are enrolled and not revoked.",
        "topics": "Topics that are not closed.",
        "permits_live": "Permits that were issued, and are neither over nor given back.",
        "attributes": "Attributes that principals hold now.",
        "attribute_epoch": "Number of the current epoch of attributes; 0 before the first.",
        "epochs": "Epochs of topics that were announced.",
        "erased": "Erasure keys that were destroyed.",
        "outbox": "Decisions that wait to be written to the ledger.",
        "backups": "Backups that were made of this authority.",
        "polls": "Requests that wait for news now.",
        "disk_free_bytes": "Bytes free on the disk of the authority's store.",
    },
}


# What only grows while the process runs; the rest are gauges.
COUNTERS = {
    "requests": {"refused"},
    "ledger": {"transactions", "entries", "refusals"},
    "log": {"groups", "parcels", "failures"},
    "carrier": {"accepted", "refused"},
    "anchorer": {"records_taken", "records_refused", "pushed_refused", "frames_dropped"},
}
HISTOGRAMS = {"duration_s", "commit_s", "store_s"}
LABELS = {"lag_parcels": "group", "duration_s": "route"}  # of numbers that come by label; all others by reason


def render(parts: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Every number of every part, as `tally_<part>_<name>`, with what it counts. Counters end in `_total`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(parts))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        for part, snapshot in self._parts.items():
            for name, value in snapshot.items():
                if isinstance(value, int | float | Histogram | Mapping):
                    yield _family(part, name, value)


def _family(part: str, name: str, value: float | Histogram | Mapping[str, Any]) -> Metric:
    told = HELP.get(part, {}).get(name, f"{name} of the {part}, which this carrier counts by itself.")
    full, labels = f"tally_{part}_{name}", [LABELS.get(name, "reason")] if isinstance(value, Mapping) else []
    found = value.items() if isinstance(value, Mapping) else [(None, value)]
    values: list[tuple[list[str], Any]] = [([] if label is None else [label], each) for label, each in found]
    if name in HISTOGRAMS:
        histogram = HistogramMetricFamily(full, told, labels=labels)
        for label, one in values:
            histogram.add_metric(label, _buckets(one), one.total_s)
        return histogram
    is_counter = name in COUNTERS.get(part, ())
    family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(full, told, labels=labels)
    for label, number in values:
        family.add_metric(label, number)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
