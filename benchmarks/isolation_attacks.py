"""The hostile tenant of `isolation.py`: every attack is a generator that yields, request after request, how many it
sent and how many of them were refused. It has an owner, topics, and as many members as it invites, as any tenant may.

A process of this file runs some of the attacks, each in a thread: it prints `ready`, then obeys `go` and `stop`, and
answers `stop` with its counts. It asks as fast as its quotas allow: told to come back later, it comes back then, unless
it is to `flood`, when it heeds nobody. It comes from addresses of its own (127.0.0.2, 127.0.0.3) and gives way to
everybody else's work on this machine, since a stranger would have another.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import data
import pyarrow as pa

from tallystick.authority.client import topic_entries
from tallystick.carriers.carrier import QUESTIONS_MAX, Fetch, LaneSought, NotStored
from tallystick.client.grants import Held
from tallystick.client.session import Session
from tallystick.demo.hand import Hand
from tallystick.errors import TallystickError
from tallystick.identity.enrol import enrol
from tallystick.identity.folder import Identity
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Packed
from tallystick.record.batch import Batch, to_message
from tallystick.record.codec import ZSTD, compress_parts
from tallystick.runtime.http1 import encode_head
from tallystick.runtime.router import BUSY_S
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.envelope import sign_request
from tallystick.trust.permit import Operation
from tallystick.trust.right import Right

ADDRESS, IDLE_ADDRESS = "127.0.0.2", "127.0.0.3"
LIES, MARKS, POLLS, SUBMISSIONS, CONNECTIONS = 12, 512, 100, 48, 300
MARKS_S = 0.7  # so that three quarters of the tenant's entries of a minute are marks, and the rest is left for others
ALL = int(Right.READ | Right.WRITE | Right.DESCRIBE)

Told = tuple[int, int]  # requests, and how many of them were refused


class Hostile:
    """The tenant as one of its attacks sees it: a member that owns a topic, so that no two write in one name."""

    def __init__(self, home: Path, scratch: Path, told: dict[str, str]) -> None:
        self.clock, self.entropy = SystemClock(), SystemEntropy()
        self._scratch = scratch
        self.owner = self._open(Identity.load(home))
        self.elsewhere, self.topic, self.principal = (
            bytes.fromhex(told[key]) for key in ("elsewhere", "token", "principal")
        )
        self.member = self._enrol()
        self.token = persist(self.member.create_topic, self.name(), data.SCHEMA.encode())

    def _open(self, identity: Identity) -> Session:
        session = Session(identity)
        for http in (session._node_http, session._authority_http):
            http._conversation._limits = replace(http._conversation._limits, attempts_max=1)
        return session

    def name(self) -> str:
        return self.entropy.bytes(8).hex()

    def _enrol(self) -> Session:
        name, owner = self.name(), self.owner.identity
        return self._open(
            enrol(
                *(self._scratch / name, name, persist(self.owner.authority.invite)),
                trust=owner.trust,
                authority_url=owner.authority_url,
                node_urls=owner.node_urls,
                clock=self.clock,
                entropy=self.entropy,
            )
        )

    def permit(self, session: Session, operation: Operation, token: bytes | None = None) -> Held:
        """For somebody who then may do everything with the topic."""
        token = token or self.token
        persist(self.member.author.write, entries.grant(token, session.identity.principal, ALL))
        return Held.of(persist(session.authority.permit, operation, token))

    def hand(self) -> Hand:
        """A new publisher."""
        session = self._enrol()
        self.permit(session, Operation.ADVERTISE)
        return persist(Hand, session, self.token)

    def subscribed(self) -> tuple[Session, bytes]:
        """A reader, and its permit."""
        held = self.permit(self.member, Operation.SUBSCRIBE)
        persist(self.member.node.subscribe, held.grant.permit)
        return self.member, held.permit.identifier

    def transaction(self, *written: bytes) -> bytes:
        identity = self.member.identity
        number = int(self.clock.now() * 1_000_000)
        return compose(identity.instance, identity.principal, number, written, identity.signing_key).data


def persist(call: Callable[..., Any], *arguments: Any) -> Any:
    """What prepares an attack is tried until it works: a topic may be unknown yet, a share spent for the minute."""
    for _ in range(200):
        try:
            return call(*arguments)
        except TallystickError as error:
            last = error
            time.sleep(0.2)
    raise last


class Manner:
    """Whether whoever is told to come back later does."""

    heeds = True

    @classmethod
    def wait(cls, asked_s: float | None) -> None:
        if cls.heeds and asked_s:
            time.sleep(asked_s)


def told(call: Callable[..., Any], *arguments: Any, **options: Any) -> Told:
    try:
        outcomes = call(*arguments, **options)
    except TallystickError as error:
        Manner.wait(getattr(error, "retry_after_s", None))
        return 1, 1
    is_refused = isinstance(outcomes, list) and outcomes and all(isinstance(one, NotStored) for one in outcomes)
    return 1, int(bool(is_refused))


def again(call: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Told]:
    while True:
        yield told(call, *arguments, **options)


# --- at the carrier ---


def contradictions(h: Hostile) -> Iterator[Told]:
    """Parcels that contradict what lies in the log, by one member after the other: each is blacklisted for it."""
    while True:
        try:
            hand = h.hand()
            batches = [data.columns(1, number) for number in range(LIES + 1)]
            first = hand.fork()
            hand.send(hand.seal_batch(batches[0]))
            lies = [hand.seal_batch(batch, lane=copy(first)) for batch in batches[1:]]
        except TallystickError as error:
            Manner.wait(getattr(error, "retry_after_s", None))
            yield 1, 1
            continue
        for lie in lies:
            yield told(hand.send, lie)


def bombs(h: Hostile) -> Iterator[Told]:
    """Parcels of some hundred bytes that open to four mebibytes."""
    hand = h.hand()
    row = {**data.columns(1).to_pylist()[0], "vin": "0" * (4 << 20)}
    batch = Batch.of(hand.lane.schema, pa.RecordBatch.from_pylist([row], schema=hand.lane.schema.arrow))
    message = to_message(batch.data)
    packed = Packed(batch, ((batch, ZSTD, message.size, compress_parts(message, ZSTD)),))

    def seal() -> Parcel:
        return hand.lane.seal(packed, now_ms=int(h.clock.now() * 1000), entropy=h.entropy.bytes(32))

    while True:
        yield told(hand.send, seal())


def lanes(h: Hostile) -> Iterator[Told]:
    """Bundles of questions for lanes that are not there."""
    session, permit = h.subscribed()
    sought = LaneSought(h.token, 0, permit, session.identity.principal, bytes(16), 1, size=1)
    yield from again(session.node.lane_fronts, [sought] * QUESTIONS_MAX)


def elsewhere(h: Hostile) -> Iterator[Told]:
    """Permits for a topic that names another node."""
    draft = persist(h.member.authority.bind_topic, h.name(), data.SCHEMA.encode(), 1, 0)
    persist(h.member.author.write, *topic_entries(draft, h.member.holder, nodes=(h.elsewhere,)))
    held = h.permit(h.member, Operation.ADVERTISE, draft.token)
    yield from again(h.member.node.advertise, held.grant.permit)


def locks(h: Hostile) -> Iterator[Told]:
    """New lanes, each with its locks."""
    yield from again(h.hand().open_lane)


def ended(h: Hostile) -> Iterator[Told]:
    """Fetching under a permit that was given back on the ledger alone."""
    session, permit = h.subscribed()
    persist(session.author.write, entries.undo_permit(permit))
    yield from again(session.node.fetch, Fetch(h.token, 0, permit, 0, 1 << 20, stored=True))


def polls(h: Hostile) -> Iterator[Told]:
    """Long polls, as many as a principal may have under way."""
    session, permit = h.subscribed()
    path, query = f"/v1/topics/{h.token.hex()}/parcels", f"partition=0&permit={permit.hex()}&offset=1000000&wait=2000"
    while True:
        yield held(session, [("GET", path, query, b"")] * POLLS)


# --- on the ledger ---


def marks(h: Hostile) -> Iterator[Told]:
    """Entries that stay in the state, in the largest transactions."""
    persist(h.member.author.write, entries.grant(h.token, h.member.identity.principal, ALL))
    while True:
        began, write = time.monotonic(), h.entropy.bytes(16)
        written = [entries.write(h.token, write, number, bytes(32)) for number in range(MARKS)]
        yield told(h.member.author.write, *written)
        time.sleep(max(0.0, MARKS_S - (time.monotonic() - began)))


def grants(h: Hostile) -> Iterator[Told]:
    """Rights on a topic given to another tenant's principal and withdrawn, which begins an epoch each time."""
    while True:
        for change in (entries.grant, entries.withdraw):
            hosts = [f"10.0.0.{number}" for number in range(8)]
            yield told(h.member.author.write, *(change(h.token, h.principal, ALL, host=host) for host in hosts))


def attributes(h: Hostile) -> Iterator[Told]:
    """Attributes for another tenant's principal: as many as it may, and then more."""
    tenant = h.owner.identity.tenant
    while True:
        one = entries.grant_attribute(tenant, h.principal, h.entropy.bytes(16), h.entropy.bytes(32))
        yield told(h.owner.author.write, one)


def refused(h: Hostile) -> Iterator[Told]:
    """Transactions that no contract takes: another tenant's topic is to be closed."""
    yield from again(h.member.author.write, entries.close_topic(h.topic))


def submissions(h: Hostile) -> Iterator[Told]:
    """Many at once that wait for their block; those that come out of order are refused."""
    persist(h.member.author.write, entries.grant(h.token, h.member.identity.principal, ALL))
    while True:
        every = [entries.write(h.token, h.entropy.bytes(16), 0, bytes(32)) for _ in range(SUBMISSIONS)]
        yield held(h.member, [("POST", "/v1/transactions", "", h.transaction(one)) for one in every])


def searches(h: Hostile) -> Iterator[Told]:
    """Through the whole ledger."""
    yield from again(h.member.node.audit, most=10_000)


# --- at the authority ---


def topics(h: Hostile) -> Iterator[Told]:
    """Topics of many partitions."""
    while True:
        yield told(h.member.create_topic, h.name(), data.SCHEMA.encode(), 64)


def permits(h: Hostile) -> Iterator[Told]:
    """One permit after the other, each an entry on the ledger."""
    h.permit(h.member, Operation.SUBSCRIBE)
    yield from again(h.member.authority.permit, Operation.SUBSCRIBE, h.token)


# --- at both doors ---


def metrics(h: Hostile) -> Iterator[Told]:
    """Counters, which anybody may see, in a loop."""
    while True:
        for http in (h.owner._node_http, h.owner._authority_http):
            yield told(http.request, "GET", "/metrics")


def connections(h: Hostile) -> Iterator[Told]:
    """Connections on which nothing is said, from an address of their own, at node and authority."""
    while True:
        with ExitStack() as lines, selectors.DefaultSelector() as closed:
            asked = turned_away = 0
            for url in (*h.owner.identity.node_urls, h.owner.identity.authority_url):
                for _ in range(CONNECTIONS):
                    asked += 1
                    try:
                        line = lines.enter_context(_connect(url, IDLE_ADDRESS))
                        closed.register(line, selectors.EVENT_READ)
                    except OSError:
                        turned_away += 1
            time.sleep(1.0)
            yield asked, turned_away + len(closed.select(0))


def held(session: Session, requests: Sequence[tuple[str, str, str, bytes]]) -> Told:
    """Requests that are under way at the same time, each on a connection of its own."""
    identity = session.identity
    address, failed = urlsplit(identity.node_urls[0]).netloc, 0
    with ExitStack() as lines:
        waiting = []
        for method, path, query, body in requests:
            target = {"method": method, "authority": address, "path": path, "query": query, "body": body}
            signer, now, nonce = identity.signing_key, session.clock.now(), session.entropy.bytes(16)
            headers = sign_request(
                signer, identity.principal, identity.nodes[0].subject, **target, now=now, nonce=nonce
            )
            try:
                line = lines.enter_context(_connect(identity.node_urls[0]))
                whole = f"{path}?{query}" if query else path
                line.sendall(encode_head(method, whole, address, headers, len(body)) + body)
                waiting.append(line)
            except OSError:
                failed += 1
        for line in waiting:
            try:
                failed += not line.recv(64).startswith(b"HTTP/1.1 200")
            except OSError:
                failed += 1
    Manner.wait(BUSY_S if failed else None)
    return len(requests), failed


def _connect(url: str, address: str = ADDRESS) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=10.0, source_address=(address, 0))


ATTACKS = {
    one.__name__: one
    for one in (
        *(contradictions, bombs, lanes, elsewhere, locks, ended, polls),
        *(marks, grants, attributes, refused, submissions, searches),
        *(topics, permits, metrics, connections),
    )
}


class Runner(threading.Thread):
    """One attack, while `going`."""

    def __init__(self, attack: Iterator[Told], going: threading.Event) -> None:
        super().__init__(daemon=True)
        self._attack, self._going = attack, going
        self.requests = self.refused = 0
        self.prepared, self.resting = threading.Event(), threading.Event()

    def run(self) -> None:
        try:
            for requests, refused in self._attack:
                self.requests, self.refused = self.requests + requests, self.refused + refused
                self.prepared.set()
                if not self._going.is_set():
                    self.resting.set()
                    self._going.wait()
        finally:  # whoever waits hears of it by its trace and its counts
            self.resting.set()


def main(home: str, scratch: str, told: str, manner: str, *names: str) -> None:
    os.nice(19)
    Manner.heeds = manner != "flood"
    socket.create_connection = partial(socket.create_connection, source_address=(ADDRESS, 0))  # type: ignore[assignment]
    going = threading.Event()

    def attack(name: str) -> Iterator[Told]:
        yield from ATTACKS[name](Hostile(Path(home), Path(scratch), json.loads(told)))

    runners = {name: Runner(attack(name), going) for name in names}
    for runner in runners.values():
        runner.start()
    for name, runner in runners.items():
        if not runner.prepared.wait(60):
            raise SystemExit(f"error: the attack {name} could not be prepared")
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "go":
            for runner in runners.values():
                runner.requests = runner.refused = 0
                runner.resting.clear()
            going.set()
            continue
        going.clear()
        for runner in runners.values():
            runner.resting.wait(60)
        print(json.dumps({name: (runner.requests, runner.refused) for name, runner in runners.items()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
