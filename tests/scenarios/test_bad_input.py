"""Bad input at every door: to the authenticated each kind has an error of its own, to the rest one face; what can be
attributed is written down; nothing is lost or half-written. Parcels of every bad kind are in test_publishing.py."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from actors import Hand, Topic, acts, fetch_query, permit_of, read_rows, reason, stored
from stack import Stack

from tallystick import wire
from tallystick.carriers.carrier import Fetch, join_frames
from tallystick.client.session import Session
from tallystick.demo.forgery import exchange, send_bytes
from tallystick.errors import Misuse, Refused, TallystickError
from tallystick.node.settings import read_settings
from tallystick.runtime.http1 import Response
from tallystick.trust.permit import Permit

ZERO = "00" * 16


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("bad-input")) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    return Topic(stack, "acme")


@pytest.fixture(scope="module")
def hand(topic: Topic) -> Hand:
    hand = Hand(topic.car, "brakes")
    stored(hand.send(hand.seal(0))[0])
    return hand


def told(response: Response) -> tuple[int, str]:
    """Status and reason of a refusal; its message is a clear one."""
    found, message, hint, _ = wire.decode(response.body)
    assert message
    assert message[0] == message[0].lower()
    assert not message.endswith(".")
    assert "Traceback" not in message
    assert hint is None or hint
    return response.status, found


# --- every route of the node ---

# method, path with {t} for the topic, query, body, expected status and reason
NODE: list[tuple[str, str, str, bytes, int, str]] = [
    ("POST", "/v1/topics/{t}/parcels", "", b"\x09", 400, "malformed"),
    ("POST", "/v1/topics/{t}/parcels", "", b"\xff\xff\xff\xff" + b"x" * 8, 400, "malformed"),
    ("POST", "/v1/topics/{t}/parcels", "", b"\0\0\0\0" * 65_537, 400, "malformed"),
    ("POST", "/v1/topics/{t}/parcels", "", b"x" * (17 << 20), 413, "too-large"),
    ("POST", "/v1/topics/zz/parcels", "", b"", 400, "malformed"),
    ("POST", "/v1/topics/00/parcels", "", b"", 403, "malformed"),
    ("GET", "/v1/topics/{t}/parcels", "", b"", 400, "malformed"),
    ("GET", "/v1/topics/{t}/parcels", f"partition=-1&permit={ZERO}&offset=0", b"", 400, "malformed"),
    ("GET", "/v1/topics/{t}/parcels", f"partition=0&partition=0&permit={ZERO}&offset=0", b"", 400, "malformed"),
    ("GET", "/v1/topics/{t}/parcels", f"partition=0&permit=zz&offset={'9' * 30}", b"", 400, "malformed"),
    ("GET", "/v1/topics/{t}/parcels", f"partition=7&permit={ZERO}&offset=0", b"", 403, "no-right"),
    ("POST", "/v1/topics/{t}/advertisements", "", b"", 400, "malformed"),
    ("POST", "/v1/topics/{t}/advertisements", "", wire.encode([9, 9]), 400, "malformed"),
    ("POST", "/v1/topics/{t}/subscriptions", "", b"\x5f\x41", 400, "malformed"),
    ("POST", "/v1/topics/{t}/locks", f"permit={ZERO}", b"\x01", 400, "malformed"),
    ("POST", "/v1/topics/{t}/locks", f"permit={ZERO}", join_frames([b"junk"]), 403, "not-advertised"),
    ("POST", "/v1/topics/{t}/inclusion", "", b"\x80", 400, "malformed"),
    ("POST", "/v1/topics/{t}/inclusion", "", wire.encode([0, 1, [5]]), 400, "malformed"),
    ("GET", "/v1/topics/{t}/lanes/zz", "", b"", 400, "malformed"),
    ("POST", "/v1/undo", "", b"", 400, "malformed"),
    ("POST", "/v1/undo", "", wire.encode(["undo"]), 400, "malformed"),
    ("GET", "/v1/locks/zz", "", b"", 400, "malformed"),
    ("GET", "/v1/locks/" + "00" * 32, "", b"", 404, "not-found"),
    ("GET", "/v1/permits/" + ZERO, "", b"", 404, "not-found"),
    ("POST", "/v1/transactions", "", b"", 400, "malformed"),
    ("POST", "/v1/transactions", "", wire.encode([b"", b"", []]), 400, "malformed"),
    ("GET", "/v1/ledger/state", "key=", b"", 403, "malformed"),
    ("GET", "/v1/ledger/blocks", "first=x", b"", 400, "malformed"),
    ("GET", "/v1/ledger/receipt", "token=00", b"", 403, "malformed"),
    ("GET", "/v1/ledger/history", "", b"", 403, "malformed"),
    ("GET", "/v1/ledger/audit", "principal=00", b"", 403, "malformed"),
]


@pytest.mark.parametrize(("method", "path", "query", "body", "status", "expected"), NODE)
def test_the_node_tells_the_authenticated_what_is_wrong_and_nobody_else(
    topic: Topic, method: str, path: str, query: str, body: bytes, status: int, expected: str
) -> None:
    path = path.replace("{t}", topic.token.hex())
    assert told(exchange(topic.car, method, path, query, body)) == (status, expected)
    stranger = exchange(topic.car, method, path, query, body[: 1 << 16], headers=[])
    assert (stranger.status, stranger.body) == (403, b"")


def test_what_can_be_attributed_is_written_down(stack: Stack, topic: Topic) -> None:
    """Somebody signed it for this topic: the history says so, without holding it against whoever has the right."""
    writer = topic.publisher("clumsy")
    place = f"/v1/topics/{topic.token.hex()}"
    exchange(writer, "POST", f"{place}/parcels", body=b"\x09")
    exchange(writer, "POST", f"{place}/advertisements", body=b"junk")
    exchange(writer, "GET", f"{place}/parcels", fetch_query(bytes(16)))
    found = acts(stack, token=topic.token, principal=writer.identity.principal, refused=True)
    counts: Counter[tuple[int, str]] = Counter()
    for act in found:
        counts[act.operation, act.reason] += act.count
    assert counts == {(2, "malformed"): 2, (1, "no-right"): 1}


# --- every route of the authority ---

AUTHORITY = ("invites", "revoke", "topics", "schemas", "rights/resolve", "permits", "keys", "undo", "erase", "rotate")


@pytest.mark.parametrize("route", AUTHORITY)
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"\x80", 400),
        (wire.encode([1, 2, 3]), 400),
        (wire.encode([b"n" * 16] + ["x"] * 12), 400),
        (wire.encode([b"short"]), 400),
        (b"\x9f\xff", 400),
        (b"x" * (300 * 1024), 413),
    ],
    ids=["empty", "nothing", "numbers", "too many", "short nonce", "endless", "oversized"],
)
def test_the_authority_tells_the_authenticated_what_is_wrong_and_nobody_else(
    topic: Topic, route: str, body: bytes, status: int
) -> None:
    identity = topic.car.identity
    where = {"url": identity.authority_url, "node": identity.authority.subject}
    answer = exchange(topic.car, "POST", f"/v1/{route}", body=body, **where)  # type: ignore[arg-type]
    assert told(answer)[0] == status
    stranger = exchange(topic.car, "POST", f"/v1/{route}", body=body[:1024], url=identity.authority_url, headers=[])
    assert (stranger.status, stranger.body) == (403, b"")


# --- permits that do not count ---


def issued(stack: Stack, permit: Permit, **changes: object) -> bytes:
    """The permit as the authority itself would have signed it with these changes."""
    return replace(permit, **changes).sign(stack.authority.authority.core.keys.signing).encode()  # type: ignore[arg-type]


def test_a_permit_out_of_its_time_place_or_instance(stack: Stack, topic: Topic, hand: Hand) -> None:
    permit = hand.permit
    wrong: list[tuple[dict[str, object], str]] = [
        ({"not_after_ms": 1}, "permit-expired"),
        ({"not_before_ms": 1 << 50, "not_after_ms": 1 << 51}, "permit-expired"),
        ({"instance": b"i" * 32}, "wrong-instance"),
        ({"tenant": b"t" * 16}, "wrong-permit"),
        ({"authority": b"a" * 16}, "unknown-authority"),
        ({"identifier": b"n" * 16}, "permit-ended"),
        ({"token": b"t" * 16}, "wrong-topic"),
    ]
    for changes, expected in wrong:
        answer = exchange(
            topic.car,
            "POST",
            f"/v1/topics/{topic.token.hex()}/advertisements",
            body=issued(stack, permit, **changes),
        )
        assert told(answer)[1] == expected, changes
    body, signature = wire.decode(hand.held.grant.permit)
    newer = wire.encode([wire.encode([2, *wire.decode(body)[1:]]), signature])
    answer = exchange(topic.car, "POST", f"/v1/topics/{topic.token.hex()}/advertisements", body=newer)
    assert told(answer) == (400, "version")


def test_the_wrong_kind_of_permit(topic: Topic, hand: Hand) -> None:
    subscriber = topic.reader.subscriber("brakes")
    with pytest.raises(Refused) as refusal:
        topic.reader.node.fetch(Fetch(topic.token, 0, hand.permit.identifier, 0, bytes_max=1))
    assert refusal.value.reason == "not-subscribed"
    ref = replace(hand.lane.topics[0], permit=permit_of(subscriber).identifier)
    borrowed = hand.resign(hand.seal(1, lane=hand.fork()), topics=(ref,))
    assert reason(hand.send(borrowed)[0]) == "not-advertised"


# --- below HTTP ---


def test_broken_http_gets_one_face_or_none_and_hinders_nobody(topic: Topic, hand: Hand) -> None:
    address = topic.car.identity.node_urls[0].removeprefix("http://")
    host, port = address.split(":")
    for data in [
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS to a plain port
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 100,
        b"POST /v1/undo HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nshort",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/undo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/undo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    ]:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            with suppress(ConnectionResetError):  # where it did not read to the end, the kernel may drop the answer
                while part := connection.recv(1 << 16):
                    answer += part
        assert re.fullmatch(rb"(HTTP/1\.1 (400|403) .*)?", answer, re.DOTALL), answer[:200]
        assert topic.token.hex().encode() not in answer
    assert send_bytes(address, f"GET /health/live HTTP/1.1\r\nhost: {address}\r\n\r\n".encode()).status == 200
    stored(hand.send(hand.seal(1))[0])


def test_a_request_cut_in_the_middle_leaves_nothing_half_written(stack: Stack, topic: Topic, hand: Hand) -> None:
    """The head is signed and whole, the body ends early: as if it had never been sent."""
    parcel = hand.seal(2)
    body = join_frames([parcel.encode()])
    before = stack.node.carrier.ends(topic.token, 0)[1]
    for cut in (0, 3, len(body) // 2, len(body) - 1):
        padded = body[:cut] + bytes(255 ^ one for one in body[cut:])  # the length is kept, the digest is not
        answer = exchange(topic.car, "POST", f"/v1/topics/{topic.token.hex()}/parcels", body=body, sent=padded)
        assert (answer.status, answer.body) == (403, b"")
    assert stack.node.carrier.ends(topic.token, 0)[1] == before
    stored(hand.send(parcel)[0])  # and the very same parcel is taken when it comes whole


def test_rows_that_do_not_fit_are_the_callers_own_mistake(topic: Topic) -> None:
    with topic.car.publisher("brakes", acks="anchored", anchor_check_s=0.02) as publisher:
        for rows in ([{"vin": 1, "seq": 1, "speed": 0.0}], [{"vin": "V", "seq": None, "speed": 0.0}], [{"other": 1}]):
            with pytest.raises(Misuse):
                publisher.send(rows)
        with pytest.raises(Misuse) as misuse:
            publisher.send([{"vin": "V" * (1 << 20), "seq": 1, "speed": 0.0}])
        assert misuse.value.hint  # the way out
        publisher.send([{"vin": "V", "seq": 3, "speed": 0.0}])
        assert publisher.flush(30) == 0


def test_after_all_this_nothing_is_lost(topic: Topic, hand: Hand) -> None:
    subscriber = topic.reader.subscriber("brakes")
    assert sorted(read_rows(subscriber, 4)) == [0, 1, 2, 3]
    assert subscriber.findings == []


def test_a_newer_file_is_refused_by_name(stack: Stack, topic: Topic) -> None:
    home = topic.car.identity.home
    text = (home / "identity.json").read_text()
    (home / "identity.json").write_text(text.replace("tallystick identity 1", "tallystick identity 2"))
    try:
        with pytest.raises(TallystickError, match="identity 2"):
            Session.open(home)
    finally:
        (home / "identity.json").write_text(text)
    settings = stack.folders.node / "node.toml"
    text = settings.read_text()
    settings.write_text(text.replace("format = 1", "format = 9"))
    try:
        with pytest.raises(TallystickError, match="9"):
            read_settings(stack.folders.node)
    finally:
        settings.write_text(text)
