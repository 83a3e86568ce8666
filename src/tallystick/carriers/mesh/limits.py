"""The bounds of a mesh node, the same at all nodes of one mesh where the comment says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeshLimits:
    epoch_ms: int = 24 * 3600 * 1000  # the same at all nodes; a revoked publisher is heard for at most this long
    delay_max_ms: int = 120_000  # from publishing to the last subscriber: some twenty hops of two beats, and resending
    skew_max_ms: int = 5_000  # how far two honest clocks may differ
    envelope_bytes_max: int = 256 * 1024  # a parcel and its locks; at a constant rate it takes a minute per hop
    window_share_max: int = 4_096  # envelopes of one publisher's key within the delay: 34 a second
    window_max: int = 262_144  # envelopes of all within the delay, about 40 MiB; then each publisher has an equal share
    advertised_ms_max: int = 3600 * 1000  # how far ahead an advertisement may expire; what a crashed publisher leaves
    early_ms_max: int = 600_000  # before an epoch begins it may be advertised, so that its paths stand when it does
    verified_max: int = 8_192  # certificates and advertisements of which it is known that they hold; 100 bytes each

    beat_s: float = 1.0  # T, the same at all nodes: from one link beat to the next
    beat_cells: int = 4  # B, the same at all nodes, at least 2: cells in a beat; 4.8 kB a second for each link
    silent_beats: int = 8  # a neighbour from whom nothing came for so long is lost
    session_beats: int = 3_600  # how long the keys of a link last: what is recorded earlier nobody opens any more
    message_bytes_max: int = 257 * 1024  # an envelope in its frame
    message_beats_max: int = 180  # how long a message is tried: longer than envelopes stay fresh
    waiting_bytes_max: int = 1024 * 1024  # for one neighbour: what leaves in four minutes at a constant rate
    unfinished_bytes_max: int = 512 * 1024  # from one neighbour, besides its oldest message
    strangers_max: int = 16  # links that others began and the node has not taken up
    knocks_max: int = 64  # looked at in a beat, besides 8 from each neighbour's address; a fifth of a millisecond each
    cells_max: int = 4_096  # from one neighbour in a beat: what a link of 40 megabits a second brings
