"""Settings of publishers and subscribers: one value each, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tallystick.errors import Misuse


@dataclass(frozen=True)
class PublisherSettings:
    acks: str = "stored"  # what a delivery waits for: stored (the promise) or anchored (the checked anchor)
    linger_s: float = 0.05  # how long a row waits for company
    batch_rows_max: int = 4_096  # beyond it sealing gains little
    parcel_bytes_max: int = 900 * 1024  # under Kafka's own limit of 1 MiB
    lanes: int = 1
    key: str | None = None  # the column by which rows are dealt to lanes
    codec: str = "planes"  # lz4 over columns laid out for it: a quarter fewer bytes, and quicker (record/codec.py)
    spool_bytes_max: int = 256 << 20  # some hours of a busy vehicle
    spool_segment_bytes_max: int = 8 << 20  # what is deleted at once when all in it is anchored
    when_full: str = "block"  # or "gap": drop rows, and seal a gap that says so
    heartbeat_s: float = 30.0  # how long a lane may be silent
    lane_parcels_max: int = 65_536  # then the lane key is refreshed,
    lane_bytes_max: int = 16 << 30  # or after so many bytes
    handed_over_bytes_min: int = 128 << 10  # a smaller batch is packed where it is sealed: handing it over takes longer
    request_parcels_max: int = 64
    request_bytes_max: int = 4 << 20
    anchor_check_s: float = 0.5
    promise_s: float = 180.0  # a promise without an anchor for so long is broken: the ledger gives nodes a minute
    retry_s: float = 0.5  # between attempts while the node cannot be reached
    keys_wait_ms: int = 20_000  # the long poll for news of keys; 0: they are asked for when a node refuses an epoch
    policy: str | Mapping[str, str] | None = None  # who may open: a formula over attributes, or formulas by column
    hide_policy: bool = False  # under the topic lock, from node and outsiders
    # What will be published, for a carrier that brings it to those alone who want it (the fabric): a formula over the
    # topic's columns, or their values. Rows that it does not cover may come to nobody.
    content: str | Mapping[str, Any] = ""
    # On an overlay lane keys need a secret that is split among its relays, besides the topic's keys. Off: those alone.
    share_locks: bool = True
    share_lock_s: float = 900.0  # then the lane key is refreshed: relays keep shares for an hour
    coded_bytes: int = 0  # on an overlay larger bodies travel as coded blocks (extra `overlay`: zfec); 0: all go whole
    write: tuple[bytes, int] | None = None  # (write, batch): all rows are pending until the commit parcel lists them

    def __post_init__(self) -> None:
        _check_choice(self.acks, "acks", "stored", "anchored")
        _check_choice(self.when_full, "when_full", "block", "gap")
        _check_number(self.lanes, "lanes", 1, 64)
        _check_number(self.lane_parcels_max, "lane_parcels_max", 1, 1 << 32)
        _check_number(self.lane_bytes_max, "lane_bytes_max", 1, 1 << 50)
        _check_number(self.coded_bytes, "coded_bytes", 0, 1 << 30)


@dataclass(frozen=True)
class SubscriberSettings:
    # earliest, latest, an offset, or a time with its zone: the first parcel anchored then or later, on the node's word
    # (times.py). A group's own offset comes first.
    start: str | int | datetime = "earliest"
    partitions: tuple[int, ...] = ()  # to read; none named: all of them, or those that the group deals
    read: str = "anchored"  # or stored: before the anchor, on the carrier's word alone, confirmed when it comes
    verify: str = "full"  # fast skips recomputing the leaves, and nothing else
    on_bad: str = "fail"  # or report; or strict, which stops for what was done openly as well
    schema_version: int | None = None  # None: the newest, older rows with nulls
    interest: str = ""  # a formula over the topic's columns: only rows that satisfy it are delivered
    closed: str = "omit"  # columns that our attributes do not open are left out; or error
    shares_wait_s: float = 30.0  # for the secret of a share lock, before a parcel counts as one that does not open
    attributes_again_s: float = 30.0  # what is closed may have been opened to us since: ask so often
    fetch_bytes_max: int = 4 << 20
    opened_bytes_max: int = 256 << 20  # that one `poll` opens; a parcel that alone is larger is found, not opened
    threads: int = 2  # that open parcels, while another fetches the next range; 0: the caller's does it all
    handed_over_bytes_min: int = 64 << 10  # a smaller body is open before another thread has heard of it
    wait_ms: int = 5_000  # a long poll for new parcels
    head_age_max_s: float = 60.0  # an older checkpoint is a withheld tail
    silence_s: float = 120.0  # four heartbeats
    late_s: float = 60.0  # a parcel sealed so long before its anchor is marked late
    renew_s: float = 5.0  # a third of the lease

    def __post_init__(self) -> None:
        if isinstance(self.start, datetime) and self.start.tzinfo is None:
            raise Misuse(f"start {self.start}: a time without its zone", hint="datetime(…, tzinfo=UTC)")
        _check_choice(self.read, "read", "anchored", "stored")
        _check_choice(self.verify, "verify", "full", "fast")
        _check_choice(self.closed, "closed", "omit", "error")
        _check_choice(self.on_bad, "on_bad", "fail", "report", "strict")
        _check_number(self.threads, "threads", 0, 64)
        _check_number(self.opened_bytes_max, "opened_bytes_max", 1, 1 << 40)


def _check_choice(value: str, name: str, *known: str) -> None:
    if value not in known:
        raise Misuse(f'{name} "{value}" is unknown, expected {" or ".join(known)}')


def _check_number(value: int, name: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise Misuse(f"{name}: {least} to {most} expected, found {value}")
