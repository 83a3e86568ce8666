"""Roles on real sockets: what arrives, who is let in, who must wait, and what is dropped."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bare_tls import ALERT, APPLICATION, BareTls
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from link_parties import (
    LIMITS,
    Ear,
    Party,
    Teller,
    caller,
    gone,
    pinned,
    public_of,
    run,
    running,
    seed_of,
    tls_of,
    until,
)
from without import without

from tallystick.carriers.overlay.station import LIMITS as RELAY_LIMITS
from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.runtime.connections import hello
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, StoreEffect, WakeAt, Woken
from tallystick.runtime.links import Links
from tallystick.runtime.network import Link, Network
from tallystick.runtime.peers import LinkEnd, LinkPeer, PinnedPeer
from tallystick.runtime.pinned_tls import certificate_of
from tallystick.runtime.queues import FrameReader, framed_message
from tallystick.runtime.role_store import SqliteRoleStore
from tallystick.runtime.sources import SeededEntropy, SystemClock

NAMES = "abcde"


def numbers(n: int) -> list[bytes]:
    return [b"%d" % i for i in range(n)]


def chatter(name: str, names: str, n: int) -> Teller:
    """Says as many numbers to everybody else."""
    return Teller(*((to, number) for number in numbers(n) for to in names if to != name))


# --- what arrives ---


@pytest.mark.parametrize("names", [NAMES[:2], NAMES])
@pytest.mark.parametrize("secure", [True, False])
def test_the_same_roles_deliver_the_same_on_sockets_and_in_simulation(names: str, secure: bool) -> None:
    network = Network(1, Link(delay_min_s=0.001, delay_max_s=0.001))
    for name in names:
        network.add(name, lambda stored, name=name: chatter(name, names, 200))  # type: ignore[misc]
    network.run(until=10.0)
    simulated: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for _, name, (sender, message) in network.delivered:
        simulated[name, sender].append(message)

    async def story() -> None:
        parties = [Party(name, chatter(name, names, 200), secure=secure) for name in names]
        for party in parties:
            party.knows(*parties)
        async with running(*parties):
            await until(lambda: all(len(party.delivered) >= 200 * (len(names) - 1) for party in parties))
            found = {(to.name, by.name): to.heard(by.name) for to in parties for by in parties if to is not by}
            assert found == simulated
            seen = parties[0].peer("b")
            assert (seen.is_heard, seen.is_called, seen.dropped, seen.waiting_out) == (True, True, 0, 0)
            assert (seen.messages_in, seen.messages_out) == (200, 200)
            assert seen.bytes_in == seen.bytes_out == len(b"".join(numbers(200)))

    assert all(messages == numbers(200) for messages in simulated.values())
    run(story)


class Sender:
    """Sends numbers until each is acknowledged; remembers through crashes which were."""

    def __init__(self, stored: Mapping[str, bytes], total: int, pause_s: float) -> None:
        self.waiting = [number for number in numbers(total) if number.decode() not in stored]
        self._pause_s = pause_s

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            if event.message in self.waiting:
                self.waiting.remove(event.message)
            return [StoreEffect(event.message.decode(), b"")]
        return [*(Send("receiver", n) for n in self.waiting), WakeAt(now + self._pause_s)] if self.waiting else []


class Receiver:
    """Delivers each number once, whatever arrives, and stores it before it answers."""

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self.seen = {key.encode() for key in stored}

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Woken):
            return []
        n = event.message
        if n in self.seen:
            return [Send(event.sender, n)]
        self.seen.add(n)
        return [StoreEffect(n.decode(), b""), Deliver(n), Send(event.sender, n)]


def test_a_role_that_is_killed_and_started_again_goes_on_as_in_simulation(tmp_path: Path) -> None:
    network = Network(3, Link(loss=0.2, duplicate=0.2, reorder=0.3))
    network.add("receiver", Receiver)
    network.add("sender", lambda stored: Sender(stored, 40, 0.2))
    network.clock.at(0.3, lambda: network.crash("receiver"))
    network.clock.at(0.9, lambda: network.restart("receiver"))
    network.run(until=60.0)

    async def story() -> None:
        stores = [SqliteRoleStore(tmp_path / "receiver"), SqliteRoleStore(tmp_path / "sender")]
        first = Party("receiver", Receiver({}), store=stores[0])
        role = Sender({}, 40, 0.02)
        sender = Party("sender", role, store=stores[1]).knows(first)
        first.knows(sender)
        async with running(sender):
            async with running(first):
                await until(lambda: first.delivered)
            role.waiting += numbers(60)[40:]  # while the other is away
            stores[0].close()
            stores[0] = SqliteRoleStore(tmp_path / "receiver")
            kept = stores[0].items()
            assert set(map(bytes.decode, first.delivered)) <= set(kept)
            second = Party("receiver", Receiver(kept), first.links.port, store=stores[0]).knows(sender)
            async with running(second):
                await until(lambda: not role.waiting)
                assert sorted(first.delivered + second.delivered, key=int) == numbers(60)
        for store in stores:
            store.close()

    assert sorted((value for _, _, value in network.delivered), key=int) == numbers(40)
    run(story)


def test_a_role_is_woken_at_the_start_and_when_it_asked_and_hears_itself() -> None:
    class Sleeper:
        due = 0.0

        def receive(self, event: Event, now: float) -> Sequence[Effect]:
            if isinstance(event, Arrived):
                return [Deliver((event.sender, event.message))]
            if not self.due:
                self.due = due = now + 0.05
                return [WakeAt(due), WakeAt(due), WakeAt(float("inf")), Deliver("asleep"), Send("b", b"to myself")]
            return [Deliver("awake" if now >= self.due else "early")]

    async def story() -> None:
        b = Party("b", Sleeper())
        async with running(b):
            await until(lambda: "awake" in b.delivered)
            assert b.delivered == ["asleep", ("b", b"to myself"), "awake"]

    run(story)


class Gate:
    """A store that keeps nothing before it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked: list[Any] = []
        self.look: Callable[[], Any] = lambda: None

    def put(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        self.asked.append((changes, self.look()))
        self.open.wait(60)

    def items(self) -> dict[str, bytes]:
        return {}


class Keeper(Teller):
    """Stores something at its start, behind what it says."""

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects = super().receive(event, now)
        return [*effects, StoreEffect("k", b"v")] if isinstance(event, Woken) else effects


def test_nothing_leaves_before_what_is_stored_is_durable() -> None:
    async def story() -> None:
        gate, a = Gate(), Party("a", Teller())
        b = Party("b", Keeper(("a", b"stored")), store=gate).knows(a)
        a.knows(b)
        gate.look = lambda: (b.peer("a").messages_out, b.peer("a").waiting_out)
        async with running(a, b):
            await until(lambda: gate.asked)
            assert gate.asked == [([("k", b"v")], (0, 0))]
            gate.open.set()
            await until(lambda: a.delivered)
            assert a.delivered == [("b", b"stored")]

    run(story)


def test_what_the_role_raises_ends_the_run() -> None:
    async def story() -> None:
        for role, what in (
            (Keeper(), "no store"),
            (Teller(("a", "text")), "are bytes"),  # type: ignore[arg-type]
        ):
            party = Party("b", role)
            party.start()
            assert party.task is not None
            with pytest.raises(Misuse, match=what):
                await party.task

    run(story)


def test_messages_for_nobody_and_messages_too_long_are_counted() -> None:
    async def story() -> None:
        limits = replace(LIMITS, frame_bytes_max=10)
        a = Party("a", Teller())
        b = Party("b", Teller(("x", b"1"), ("a", b"2" * 11), ("a", b"3" * 10), ("a", b"")), limits=limits).knows(a)
        a.knows(b)
        async with running(a, b):
            await until(lambda: len(a.delivered) == 2)
            assert a.heard("b") == [b"3" * 10, b""]
            assert b.links.statistics().unsent == {"unknown": 1, "oversized": 1}

    run(story)


# --- who is let in ---


def forged(victim: str, thief: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A certificate in the victim's name, from the issuer whose key everybody has, for the key of the thief."""
    key = Ed25519PrivateKey.from_private_bytes(seed_of(thief))
    real = x509.load_der_x509_certificate(certificate_of(public_of(victim)))
    certificate = (
        x509.CertificateBuilder(
            real.issuer,
            real.subject,
            key.public_key(),
            real.serial_number,
            real.not_valid_before_utc.replace(tzinfo=None),
            real.not_valid_after_utc.replace(tzinfo=None),
        )
        .sign(Ed25519PrivateKey.from_private_bytes(bytes(32)), None)
        .public_bytes(Encoding.PEM)
    )
    file = folder / "forged.pem"
    file.write_bytes(certificate + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for context in contexts:
        context.load_cert_chain(file)
    return contexts


def careless(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """As those of an attacker, who does not mind with whom it speaks."""
    for context in contexts:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return contexts


def tls_of_thief(kind: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    match kind:
        case "no certificate":
            return careless((ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)))
        case "another name's":
            return careless(tls_of("c"))
        case "its own":
            return careless(tls_of("x"))
    return careless(forged("a", "x", folder))


def what_a_thief_gets(kind: str, folder: Path) -> tuple[list[Any], bytes, list[str]]:
    """It calls b as if it were a, which b knows, as it knows c: what b took, what it answered, why not."""

    async def story() -> None:
        b = Party("b", Teller()).knows(("a", 1), ("c", 1))
        async with running(b), caller(b.links.port, "a", tls_of_thief(kind, folder)[0]) as (reader, writer):
            with suppress(OSError):
                answered.append(await reader.read(1000))
            writer.write(framed_message(b"from a"))
            await until(lambda: b.delivered or b.links.statistics().refused)
            delivered.extend(b.delivered)
            reasons.extend(b.links.statistics().refused)

    answered: list[bytes] = []
    delivered: list[Any] = []
    reasons: list[str] = []
    run(story)
    return delivered, b"".join(answered), reasons


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no certificate", "handshake"),
        ("another name's", "wrong key"),
        ("its own", "certificate"),
        ("forged", "certificate"),
    ],
)
def test_a_caller_without_the_key_of_its_name_gets_nothing(kind: str, reason: str, tmp_path: Path) -> None:
    assert what_a_thief_gets(kind, tmp_path) == ([], b"", [reason])


def test_without_the_check_of_the_key_a_member_speaks_in_another_s_name(tmp_path: Path) -> None:
    with without("the key of a link's peer"):
        delivered, answered, _ = what_a_thief_gets("another name's", tmp_path)
    assert answered == framed_message(hello("b"))
    assert delivered == [("a", b"from a")]


def test_without_pinned_certificates_the_check_of_the_key_still_holds_and_without_both_nothing_does(
    tmp_path: Path,
) -> None:
    with without("the pinned certificates of a link"):
        assert what_a_thief_gets("no certificate", tmp_path) == ([], b"", ["wrong key"])
    with without("the pinned certificates of a link", "the key of a link's peer"):
        assert what_a_thief_gets("no certificate", tmp_path)[0] == [("a", b"from a")]


@pytest.mark.parametrize("signer", ["a", "x"])
def test_a_certificate_that_everybody_can_make_is_worth_nothing_without_its_key(signer: str) -> None:
    """With the key it is: the handshake that is written out here is a good one."""

    def call(port: int) -> list[tuple[int, bytes]]:
        key = Ed25519PrivateKey.from_private_bytes(seed_of(signer))
        connection = BareTls(port, certificate_of(public_of("a")), key)
        try:
            connection.send(framed_message(hello("a")))
            return [connection.receive()]
        finally:
            connection.close()

    async def story() -> None:
        b = Party("b", Teller()).knows(("a", 1))
        async with running(b):
            [(kind, content)] = await asyncio.to_thread(call, b.links.port)
            if signer == "a":
                assert (kind, content) == (APPLICATION, framed_message(hello("b")))
                assert b.links.statistics().refused == {}
            else:
                assert (kind, content) in ((0, b""), (ALERT, b"\x02\x33"))  # decrypt_error
                assert b.links.statistics().refused == {"handshake": 1}

    run(story)


@pytest.mark.parametrize(
    ("kind", "reason"), [("its own", "certificate"), ("forged", "certificate"), ("another name's", "wrong key")]
)
def test_who_answers_without_the_key_of_its_name_hears_nothing(kind: str, reason: str, tmp_path: Path) -> None:
    async def story() -> None:
        b = Party("b", Teller(("a", b"for a alone")))
        async with (
            Ear(tls_of_thief(kind, tmp_path)[1], greets="a").open() as ear,
            running(b.knows(("a", ear.port), ("c", 1))),
        ):
            await until(lambda: b.refused(reason) >= 2)  # it goes on trying
            assert b.peer("a").waiting_out == 1
            assert b"".join(ear.said.values()) == b""

    run(story)


def test_without_the_check_of_the_key_a_member_hears_what_is_for_another(tmp_path: Path) -> None:
    async def story() -> None:
        b = Party("b", Teller(("a", b"for a alone")))
        tls = tls_of_thief("another name's", tmp_path)[1]
        async with Ear(tls, greets="a").open() as ear, running(b.knows(("a", ear.port), ("c", 1))):
            await until(lambda: b"for a alone" in ear.said[1])
            assert b.peer("a").waiting_out == 0

    with without("the key of a link's peer"):
        run(story)


@pytest.mark.parametrize(("greets", "reason"), [("", "late"), ("c", "wrong name")])
def test_nothing_is_said_before_the_other_side_has_let_one_in(greets: str, reason: str) -> None:
    """A holder of the key that does not greet, or by another name, hears only who calls."""

    async def story() -> None:
        b = Party("b", Teller(("a", b"for a alone")), limits=replace(LIMITS, handshake_s=0.1))
        async with Ear(tls_of("a", "b")[1], greets).open() as ear, running(b.knows(("a", ear.port))):
            await until(lambda: b.refused(reason))
            assert set(ear.said.values()) <= {b"", framed_message(hello("b"))}
            assert b.peer("a").waiting_out == 1

    run(story)


def test_old_tls_is_refused() -> None:
    async def story() -> None:
        b = Party("b", Teller()).knows(("a", 1))
        tls = careless(tls_of("a"))[0]
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        tls.maximum_version = ssl.TLSVersion.TLSv1_2
        async with running(b):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection("127.0.0.1", b.links.port, ssl=tls, server_hostname="")
            await until(lambda: b.refused("handshake"))

    run(story)


def test_a_peer_that_calls_again_takes_its_own_place() -> None:
    async def story() -> None:
        b = Party("b", Teller()).knows(("a", 1))
        tls = tls_of("a", "b")[0]
        async with running(b), caller(b.links.port, "a", tls) as (old, first):
            await old.readexactly(4 + len(hello("b")))
            first.write(framed_message(b"1"))
            await until(lambda: b.delivered)
            async with caller(b.links.port, "a", tls) as (new, second):
                assert await gone(old) == b""
                await new.readexactly(4 + len(hello("b")))
                second.write(framed_message(b"2"))
                await until(lambda: len(b.delivered) == 2)
                assert b.heard("a") == [b"1", b"2"]
                assert b.links.statistics().refused == {"replaced": 1}

    run(story)


def test_those_who_connect_and_say_nothing_keep_nobody_out() -> None:
    async def story() -> None:
        b = Party("b", Teller(), limits=replace(LIMITS, handshakes_max=2))
        a = Party("a", Teller(("b", b"hello"))).knows(b)
        async with running(b.knows(a)):
            silent = [socket.create_connection(("127.0.0.1", b.links.port)) for _ in range(6)]
            await until(lambda: b.refused("crowded") == 4)
            async with running(a):
                await until(lambda: b.delivered)
                assert b.refused("crowded") == 5
            for one in silent:
                one.close()

    run(story)


def test_the_certificate_of_a_key_is_that_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "links.md").read_text(encoding="utf-8")
    [(key, certificate)] = re.findall(r"```\nkey\s+(\w+)\ncertificate\s+([\w\s]+)```", page)
    assert certificate_of(bytes.fromhex(key)) == bytes.fromhex(certificate)


def test_garbage_and_connections_that_are_reset_leave_nothing_behind() -> None:
    hello_of_tls = bytes.fromhex("160301020001fc0303")

    async def story() -> None:
        loop, unexpected = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _, context: unexpected.append(context))
        b = Party("b", Teller())
        a = Party("a", Teller(("b", b"hello"))).knows(b)
        async with running(b.knows(a)):
            http = b"GET / HTTP/1.1\r\n\r\n"
            for garbage in (b"", b"\0", hello_of_tls, hello_of_tls + bytes(600), http, bytes(5000)):
                for linger_s in (0, 1):  # 0: reset
                    rude = socket.create_connection(("127.0.0.1", b.links.port))
                    rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, linger_s))
                    rude.sendall(garbage)
                    await asyncio.sleep(0)
                    rude.close()
            await until(lambda: sum(b.links.statistics().refused.values()) == 12)
            async with running(a):
                await until(lambda: b.delivered)
        assert unexpected == []

    run(story)


# --- the directory ---


def test_who_is_removed_is_heard_no_more_and_who_is_added_is() -> None:
    async def story() -> None:
        b, tls = Party("b", Teller()).knows(("a", 1)), tls_of("a", "b")[0]
        async with running(b):
            async with caller(b.links.port, "a", tls) as (reader, writer):
                await reader.readexactly(4 + len(hello("b")))
                b.knows(("a", 1), ("c", 1))  # this changes nothing for a
                writer.write(framed_message(b"1"))
                await until(lambda: b.delivered)
                b.knows(("c", 1))
                assert await gone(reader) == b""
            async with caller(b.links.port, "a", tls) as (reader, _):
                assert await gone(reader) == b""
            assert b.links.statistics().refused == {"certificate": 1}
            assert list(b.links.statistics().peers) == ["c"]
            a = Party("a", Teller(("b", b"2"))).knows(b)
            async with running(a):
                b.knows(a)
                await until(lambda: len(b.delivered) == 2)
                assert b.heard("a") == [b"1", b"2"]

    run(story)


def test_what_waits_for_who_is_removed_goes_nowhere() -> None:
    async def story() -> None:
        b = Party("b", Teller(("a", b"for a"), ("c", b"for c")))
        async with AsyncExitStack() as stack:
            ears = [await stack.enter_async_context(Ear(tls_of(name, "b")[1], name).open()) for name in "ac"]
            async with running(b.knows(("a", 1), ("c", ears[1].port))):
                await until(lambda: b"for c" in ears[1].said[1])
                assert b.peer("a").waiting_out == 1
                b.knows(("a", ears[0].port))  # another address: a new peer
                assert b.peer("a").waiting_out == 0
                await until(lambda: not b.links.statistics().peers["a"].is_called)
                assert ears[0].calls == 0

    run(story)


def test_what_somebody_sent_before_it_was_removed_is_not_heard() -> None:
    async def story() -> None:
        gate = Gate()
        b = Party("b", Keeper(), store=gate).knows(("a", 1), ("c", 1))
        async with (
            running(b),
            caller(b.links.port, "a", tls_of("a", "b")[0]) as (a_reader, a),
            caller(b.links.port, "c", tls_of("c", "b")[0]) as (c_reader, c),
        ):
            for name, reader, writer in (("a", a_reader, a), ("c", c_reader, c)):
                await reader.readexactly(4 + len(hello("b")))
                writer.write(framed_message(name.encode()))
            await until(lambda: b.peer("a").waiting_in and b.peer("c").waiting_in)
            b.knows(("c", 1))
            gate.open.set()
            await until(lambda: b.delivered)
            assert b.delivered == [("c", b"c")]
            assert b.links.statistics().input_bytes == 0

    run(story)


def test_who_is_away_is_called_after_pauses_that_grow_and_differ() -> None:
    class Noting(SystemClock):
        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            await asyncio.sleep(0)

    async def story() -> None:
        limits = replace(LIMITS, pause_min_s=1, pause_max_s=10)
        b = Party("b", Teller(("a", b"1")), clock=Noting(), entropy=SeededEntropy(1), limits=limits).knows(("a", 1))
        async with running(b):
            await until(lambda: len(pauses) > 20)
            assert b.refused("away") > 20
        for pause, most in zip(pauses, [1, 2, 4, 8, *[10] * 17], strict=False):
            assert most / 2 <= pause <= most
        assert len(set(pauses[4:21])) > 10

    pauses: list[float] = []
    run(story)


def test_a_directory_that_cannot_be_is_refused() -> None:
    plain, secure = Party("b", Teller(), secure=False).links, Party("b", Teller()).links
    with pytest.raises(Misuse, match="two names"):
        secure.set_peers({"a": pinned("a", 1), "c": pinned("a", 2)})
    with pytest.raises(Misuse, match="two names"):
        secure.set_peers({"a": pinned("b", 1)})
    with pytest.raises(Misuse, match="host:port"):
        secure.set_peers({"a": PinnedPeer("127.0.0.1", public_of("a"))})
    with pytest.raises(Misuse, match="host:port"):
        secure.set_peers({"a": PinnedPeer("127.0.0.1:65536", public_of("a"))})
    with pytest.raises(Malformed, match="small order"):
        secure.set_peers({"a": PinnedPeer("127.0.0.1:1", bytes(32))})
    with pytest.raises(Misuse, match="not on loopback"):
        plain.set_peers({"a": PinnedPeer("192.0.2.1:1", public_of("a"))})
    assert secure.statistics().peers == {}
    for end in (LinkEnd("b"), LinkEnd("b", "192.0.2.1", insecure=True)):
        with pytest.raises(Misuse, match="a seed for TLS"):
            Links(end, Teller())
    with pytest.raises(Unavailable, match="cannot listen"):
        Links(LinkEnd("b", port=secure.port, seed=seed_of("b")), Teller())
    plain.stop()
    secure.stop()


# --- lengths ---


@pytest.mark.parametrize("fault", [b"\xff\xff\xff\xff", framed_message(bytes(101)), b"\x00\x00\x00\x65"])
def test_a_frame_that_is_too_long_ends_the_connection_and_bars_the_peer_for_a_while(fault: bytes) -> None:
    class Later(SystemClock):
        ahead_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead_s

    async def story() -> None:
        clock, limits = Later(), replace(LIMITS, frame_bytes_max=100, pause_min_s=1000, pause_max_s=1000)
        b, tls = Party("b", Teller(), clock=clock, limits=limits).knows(("a", 1)), tls_of("a", "b")[0]
        async with running(b):
            async with caller(b.links.port, "a", tls) as (reader, writer):
                await reader.readexactly(4 + len(hello("b")))
                writer.write(framed_message(bytes(100)) + fault + framed_message(b"behind"))
                assert await gone(reader) == b""
            async with caller(b.links.port, "a", tls) as (reader, writer):
                assert await gone(reader) == b""
            clock.ahead_s = 1001.0
            async with caller(b.links.port, "a", tls) as (reader, writer):
                await reader.readexactly(4 + len(hello("b")))
                writer.write(framed_message(b"back"))
                await until(lambda: len(b.delivered) == 2)
            assert b.heard("a") == [bytes(100), b"back"]
            assert b.links.statistics().refused == {"malformed": 1, "barred": 1}

    run(story)


def test_the_bar_grows_and_is_forgotten() -> None:
    async def story() -> None:
        peer = LinkPeer("a", pinned("a", 1), replace(LIMITS, pause_min_s=1, pause_max_s=5))
        ends = []
        for now in (0.0, 1.0, 3.0, 7.0, 100.0):
            peer.bar(now)
            ends.append(peer.barred_until - now)
        assert ends == [1, 2, 4, 5, 1]

    run(story)


def test_a_message_that_is_cut_off_is_none() -> None:
    async def story() -> None:
        b = Party("b", Teller()).knows(("a", 1))
        async with running(b):
            async with caller(b.links.port, "a", tls_of("a", "b")[0]) as (reader, writer):
                await reader.readexactly(4 + len(hello("b")))
                writer.write(framed_message(b"whole") + framed_message(b"cut off")[:-1])
                await until(lambda: b.delivered)
            await until(lambda: not b.peer("a").is_heard)
            assert b.delivered == [("a", b"whole")]
            assert b.links.statistics().refused == {}

    run(story)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_frames_are_read_however_they_come(step: int) -> None:
    messages = [b"", b"1", bytes(7), b"", b"22"]
    data = b"".join(map(framed_message, messages))
    reader = FrameReader(7)
    found = [message for at in range(0, len(data), step) for message in reader.feed(data[at : at + step])]
    assert found == messages
    with pytest.raises(Malformed, match="at most 7 bytes"):
        list(reader.feed(framed_message(bytes(8))))


# --- who must wait ---

FLOOD = [framed_message(bytes(1 << 10))] * (16 << 10)  # 16 MiB: more than sockets hold
INPUT_BYTES_MAX = 64 << 10


def flooded(is_enough: Callable[[Party], bool]) -> tuple[int, int]:
    """a sends a flood to b, whose role is held up, and c three messages. When a has `is_enough` waiting the role goes
    on. Returns the most that waited, in bytes, and how many messages the role heard until it had heard c's."""

    async def story() -> None:
        gate = Gate()
        b = Party("b", Keeper(), store=gate, limits=replace(LIMITS, input_bytes_max=INPUT_BYTES_MAX))
        b.knows(("a", 1), ("c", 1))
        async with (
            running(b),
            caller(b.links.port, "a", tls_of("a", "b")[0]) as (a_reader, a),
            caller(b.links.port, "c", tls_of("c", "b")[0]) as (c_reader, c),
        ):
            for reader in (a_reader, c_reader):
                await reader.readexactly(4 + len(hello("b")))
            a.writelines(FLOOD)
            await until(lambda: is_enough(b))
            c.writelines(map(framed_message, numbers(3)))
            await until(lambda: b.peer("c").waiting_in == 3)
            found.append(b.links.statistics().input_bytes)
            gate.open.set()
            await until(lambda: len(b.heard("c")) == 3)
            found.append(b.delivered.index(("c", b"2")) + 1)
            if found[1] < 10:  # then a goes on, too
                await until(lambda: len(b.heard("a")) == len(FLOOD))

    found: list[int] = []
    run(story)
    return found[0], found[1]


def is_full(b: Party) -> bool:
    return b.links.statistics().input_bytes > INPUT_BYTES_MAX


def test_a_flood_from_one_peer_does_not_keep_the_role_from_another() -> None:
    waited, heard = flooded(is_full)
    assert heard <= 6
    assert waited < 1 << 20


def test_without_turns_it_does() -> None:
    with without("the turns of those who send"):
        _, heard = flooded(is_full)
    assert heard > 60


def test_without_a_pause_the_flood_is_in_memory() -> None:
    with without("a pause for who sends the most"):
        waited, _ = flooded(lambda b: b.peer("a").waiting_in == len(FLOOD))
    assert waited > 16 << 20


class Rounds:
    """Sends c a number, and, whenever c answers, a lot to a and c the next one."""

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Woken):
            return [Send("c", b"0")]
        n = int(event.message)
        return [Deliver(n), Send("a", bytes(256 << 10)), *([Send("c", b"%d" % (n + 1))] if n < 100 else [])]


class Echo:
    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        return [Send(event.sender, event.message)] if isinstance(event, Arrived) else []


def left_by_who_does_not_read() -> tuple[int, int]:
    """a does not read while b and c speak a hundred times: how many messages wait for it, and were dropped."""

    async def story() -> None:
        b = Party("b", Rounds(), limits=replace(LIMITS, output_bytes_max=1 << 20))
        c = Party("c", Echo()).knows(b)
        async with Ear(tls_of("a", "b")[1], "a", reads=False).open() as ear, running(b.knows(("a", ear.port), c), c):
            await until(lambda: len(b.delivered) == 101)
            assert b.delivered == list(range(101))
            found.extend((b.peer("a").waiting_out, b.peer("a").dropped))

    found: list[int] = []
    run(story)
    return found[0], found[1]


def test_a_peer_that_does_not_read_holds_up_nobody_and_little_waits_for_it() -> None:
    waiting, dropped = left_by_who_does_not_read()
    assert waiting <= 4
    assert dropped > 0


def test_the_longest_frames_of_a_relay_leave_whatever_is_sent_beside_them() -> None:
    """Two blocks of one parcel, and what is said in the same turn; the queue drops its oldest where it is full."""
    longest, words = bytes(RELAY_LIMITS.frame_bytes_max), [("a", b"1"), ("a", b"2")]

    async def story() -> None:
        says = [("a", longest), ("a", longest), *words]
        b, a = Party("b", Teller(*says), limits=RELAY_LIMITS), Party("a", Teller(), limits=RELAY_LIMITS)
        async with running(a.knows(b), b.knows(a)):
            await until(lambda: len(a.delivered) == len(says))
            assert [len(one) for one in a.heard("b")] == [len(longest), len(longest), 1, 1]
            assert b.peer("a").dropped == 0

    run(story)


def test_without_a_bound_all_of_it_waits() -> None:
    with without("the bound of what waits for a peer"):
        waiting, dropped = left_by_who_does_not_read()
    assert waiting > 40
    assert dropped == 0


def test_a_peer_that_takes_nothing_for_long_is_called_anew() -> None:
    async def story() -> None:
        limits = replace(LIMITS, unread_s=0.05, output_bytes_max=32 << 20)
        b = Party("b", Teller(*[("a", bytes(1 << 20))] * 32), limits=limits)  # more than sockets hold
        async with Ear(tls_of("a", "b")[1], "a", reads=False).open() as ear, running(b.knows(("a", ear.port))):
            await until(lambda: ear.calls >= 2)
            assert b.peer("a").messages_out < 32

    run(story)


def test_stopping_ends_everything_whatever_others_do() -> None:
    """Somebody connects and says nothing, somebody does not read, somebody is away, and somebody floods."""

    async def story() -> None:
        b = Party("b", Teller(("a", bytes(1 << 20)), ("c", b"nobody is there")))
        silent = socket.socket()
        async with (
            Ear(tls_of("a", "b")[1], "a", reads=False).open() as ear,
            running(b.knows(("a", ear.port), ("c", 1), ("d", 1))),
            caller(b.links.port, "d", tls_of("d", "b")[0]) as (reader, d),
        ):
            silent.connect(("127.0.0.1", b.links.port))
            await reader.readexactly(4 + len(hello("b")))
            d.writelines(FLOOD)
            await until(lambda: b.peer("a").is_called and b.refused("away") and b.heard("d"))
            await b.stop()
            assert asyncio.all_tasks() == {asyncio.current_task(), *ear.tasks}
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", b.links.port)
        silent.close()

    run(story)


# --- the store ---


def test_a_store_keeps_what_it_was_given(tmp_path: Path) -> None:
    store = SqliteRoleStore(tmp_path / "kept")
    store.put([("a", b"1"), ("b", b"2"), ("a", None), ("c", b"3"), ("c", b"4"), ("never", None)])
    with pytest.raises(Unavailable, match="another process has it open"):
        SqliteRoleStore(tmp_path / "kept")
    store.close()
    store = SqliteRoleStore(tmp_path / "kept")
    assert store.items() == {"b": b"2", "c": b"4"}
    store.close()
    (tmp_path / "other").write_bytes(b"something else entirely" * 100)
    with pytest.raises(Misuse, match="not a role's store"):
        SqliteRoleStore(tmp_path / "other")
    with pytest.raises(Misuse, match="cannot be written"):
        SqliteRoleStore(tmp_path / "nowhere" / "kept")
