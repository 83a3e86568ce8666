"""What can be counted in the simulated network, where the frames are the same bytes as on sockets, and one computation.

wire_…           parcels over three hops, from one virtual node of three relays to the next, with one relay of each
                 virtual node dropping all it should send, at different indices. *Peer* is every body once over each
                 hop, *ours* all frames, with headers, promises, questions, acknowledgements, and what was sent in
                 vain to or for bad relays. All honest relays of the last virtual node must have every parcel
shares_10        shares at a subscriber behind ten virtual nodes (2, 3), where a relay is silent, so that all relays
                 send all lineages that they hold: n·C(n, k). *Peer* is 3¹⁰, what splitting again at every hop gives
shares_10_quiet  the same where nobody fails: k
reconstruct_10   a secret of 32 bytes from ten shares, all of which are needed, by `crypto/shamir.py`; *peer* is the
                 time that the paper prints for ten shares, on a machine that it does not name
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "overlay"))  # the tests' worlds

import data
import harness
from carrying_world import CarryingWorld, Publishing, drop, seal_all
from sharing_world import SUBSCRIBER, World, silent

from tallystick.carriers.overlay.content import Strategy
from tallystick.carriers.overlay.content_forwarding import ContentLimits
from tallystick.carriers.overlay.frames import OverlayFrame
from tallystick.carriers.overlay.relayed_keys import SharesMessage, scheduled
from tallystick.crypto.shamir import combine, split
from tallystick.record.batch import Batch
from tallystick.runtime.network import Network
from tallystick.trust.shares import ShareList, ShareSet

HOPS = 3
SIZES = (3,) * (HOPS + 1)
BAD = {(1, 1): [drop], (2, 2): [drop], (3, 3): [drop], (4, 1): [drop]}
STRATEGIES = {
    "replicas": (Strategy.REPLICAS, None),
    "retransmit": (Strategy.ONE_COPY, None),
    "coded": (Strategy.CODED, (2, 3)),
}
PARCELS, RECORDS = 8, 4096
PAPER_RECONSTRUCT_MS = 5.2  # 000, on Fig. 10
SECONDS = 120.0  # of simulated time: longer than any attempt, or `hop_keep_s`


class CountingNetwork(Network):
    """Counts the bytes that anybody sends."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent_bytes = 0
        self.heard: list[bytes] = []  # by the subscriber

    def send(self, sender: str, to: str, message: bytes) -> None:
        self.sent_bytes += len(message)
        if to == SUBSCRIBER.hex():
            self.heard.append(message)
        super().send(sender, to, message)


def wire_rows(parcels: int = PARCELS, records: int = RECORDS) -> Iterator[harness.Row]:
    for name, (strategy, coded) in STRATEGIES.items():
        world = CarryingWorld(
            SIZES, 0, dict(BAD), limits=ContentLimits(strategy=strategy), make_network=CountingNetwork
        )
        batches = [Batch.of(data.SCHEMA, data.columns(records, records * number)) for number in range(parcels)]
        given = list(seal_all(Publishing().lane(schema=data.SCHEMA), batches, coded))
        world.offer(given)
        world.run(SECONDS)
        for index in range(1, SIZES[-1] + 1):
            if (len(SIZES), index) not in BAD and len(world.delivered(index)) != parcels:
                raise SystemExit(f"error: {name}: relay {index} of the last virtual node has not all parcels")
        assert isinstance(world.network, CountingNetwork)
        ours = world.network.sent_bytes / parcels
        content = HOPS * sum(len(parcel.body) for parcel in given) / parcels
        yield asdict(harness.Result(f"wire_{name}", ours, content, "bytes/parcel", content / ours, None, 1))


def shares_at_subscriber(hops: int, liar: bool) -> int:
    """The most of one attempt. The subscriber opens the secret, or nothing is counted."""
    sizes, number = (3,) * hops, 0
    lies = {(2, 1): [silent]} if liar else {}
    world = World(sizes, 0, lies, make_network=CountingNetwork)
    second = world.plans[1].nodes[1]
    given = world.publish(number)
    while 1 not in scheduled(second, given.origin.lane_key):  # else nobody misses the silent one
        number += 1
        world = World(sizes, 0, lies, make_network=CountingNetwork)
        given = world.publish(number)
    world.run(SECONDS)
    if world.opened() != [given.secret]:
        raise SystemExit("error: the subscriber did not open the lane key")
    assert isinstance(world.network, CountingNetwork)
    attempts: dict[int, int] = {}
    for frame in world.network.heard:
        message = SharesMessage.decode(OverlayFrame.decode(frame))
        if message.shares is not None and message.listed is not None:
            attempt = ShareSet.decode(message.shares).attempt
            attempts[attempt] = attempts.get(attempt, 0) + len(ShareList.decode(message.listed).encoded)
    return max(attempts.values())


def share_rows(hops: int = 10) -> Iterator[harness.Row]:
    split_again = 3**hops
    for name, liar, target in ((f"shares_{hops}", True, 6500.0), (f"shares_{hops}_quiet", False, None)):
        ours = shares_at_subscriber(hops, liar)
        ratio = split_again / ours
        met = None if target is None else ratio >= target
        yield asdict(harness.Result(name, ours, split_again, "shares", ratio, target, 1, met))


def reconstruct_row(rounds: int = 15, times: int = 2000) -> Iterator[harness.Row]:
    shares, taken = split(bytes(range(32)), 10, 10, bytes(32)), list[float]()
    reconstruct = partial(combine, shares)
    if reconstruct() != bytes(range(32)):
        raise SystemExit("error: the shares do not give the secret")
    for _ in range(rounds):
        began = process_time()
        for _ in range(times):
            reconstruct()
        taken.append(1000 * (process_time() - began) / times)
    paper: Sequence[float] = [PAPER_RECONSTRUCT_MS] * rounds
    yield asdict(harness.compare("reconstruct_10", taken, paper, "ms", 52.0))
