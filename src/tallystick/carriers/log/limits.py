"""The bounds of the log's storage engine."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class LogLimits:
    """Every number is a bound that some caller could otherwise push without end."""

    segment_bytes_max: int = 64 * MIB  # retention works by whole segments; opening reads the newest of each
    header_bytes_max: int = 64 * KIB  # a header of many topics and groups takes a few KiB
    body_bytes_max: int = 16 * MIB  # parcels are under 900 KiB by default; room for a topic that asks for more
    blob_bytes_max: int = 256 * KIB  # a lock takes 1–10 KiB; a policy lock of a hundred attributes more
    places_max: int = 64  # topics of one lane
    partitions_max: int = 16_384  # each costs a folder, a file and one sync in the commits that touch it
    staged_bytes_max: int = 64 * MIB  # memory held between two commits; beyond it callers must wait
    staged_parcels_max: int = 16_384  # the same for many tiny parcels
    read_bytes_max: int = 16 * MIB  # one answer
    files_open_max: int = 128  # descriptors that one commit holds at once
    journal_pending_bytes_max: int = 64 * MIB  # operations that the ledger has not taken; kept in memory too
    journal_file_bytes_max: int = 8 * MIB  # then the journal is rewritten with what is still pending
    reserve_bytes: int = 64 * MIB  # left free for the ledger and for the reports of a full disk
    early_max: int = 0  # entries of a partition that readers may see while they are being synced (store.py)
