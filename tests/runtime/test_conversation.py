"""The client's decisions, driven without sockets."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.runtime.address import Address, parse_address
from tallystick.runtime.conversation import Attempt, ClientLimits, ConnectionGone, Conversation, Pause, RequestSigner
from tallystick.runtime.http1 import Response, answer_error
from tallystick.runtime.sources import ManualClock, SeededEntropy
from tallystick.trust.envelope import Envelope, PlainHead, signed_time, verify_head

NODE, NODE_KEY = b"n" * 16, SigningKey.from_seed(b"n" * 32)
IDENTITY = RequestSigner(b"p" * 16, SigningKey.from_seed(b"p" * 32))
OK = Response(200, {}, b"done")
DOWN = Unavailable("down")


def conversation(clock: ManualClock, nodes: int = 1, **limits: Any) -> Conversation:
    endpoints = [parse_address(Address(f"http://127.0.0.1:{7000 + n}", NODE, NODE_KEY.public)) for n in range(nodes)]
    return Conversation(endpoints, IDENTITY, clock, SeededEntropy(1), ClientLimits(**limits))


def drive(talk: Conversation, outcomes: list[Any], **options: Any) -> tuple[list[Attempt | Pause], Response]:
    """All steps and the answer; an outcome may be a function of the attempt."""
    steps = talk.converse("POST", "/x", "", b"body", "application/cbor", **options)
    taken: list[Attempt | Pause] = []
    given: Any = None
    queue = list(outcomes)
    while True:
        try:
            step = steps.send(given)
        except StopIteration as done:
            assert not queue
            return taken, done.value
        taken.append(step)
        given = None
        if isinstance(step, Attempt):
            outcome = queue.pop(0)
            given = outcome(step) if callable(outcome) else outcome


def envelope_of(attempt: Attempt, now: float) -> Envelope:
    lines = attempt.head.split(b"\r\n")[1:-2]
    headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
    envelope = verify_head(PlainHead("POST", "127.0.0.1:7000", "/x", "", headers), lambda _: IDENTITY.key.public, NODE)
    envelope.check_body(attempt.body)
    envelope.check_fresh(now, delay_max_s=1, skew_max_s=1)
    return envelope


def ports(steps: list[Attempt | Pause]) -> list[int]:
    return [step.endpoint.port for step in steps if isinstance(step, Attempt)]


def pauses(steps: list[Attempt | Pause]) -> list[float]:
    return [step.seconds for step in steps if isinstance(step, Pause)]


def test_a_good_answer_takes_one_attempt() -> None:
    clock = ManualClock()
    steps, answer = drive(conversation(clock), [OK])
    assert answer is OK
    assert isinstance(steps[0], Attempt)
    envelope_of(steps[0], clock.now())


def test_the_next_address_is_tried_at_once_and_remembered() -> None:
    talk = conversation(ManualClock(), nodes=3)
    steps, _ = drive(talk, [DOWN, DOWN, OK])
    assert (ports(steps), pauses(steps)) == ([7000, 7001, 7002], [])
    steps, _ = drive(talk, [OK])
    assert ports(steps) == [7002]


def test_pauses_grow_to_their_bound_when_all_addresses_fail() -> None:
    talk = conversation(ManualClock(), nodes=2, attempts_max=12, backoff_first_s=1.0, backoff_max_s=4.0)
    steps, _ = drive(talk, [DOWN] * 10 + [OK])
    waited = pauses(steps)
    assert len(waited) == 5
    for seconds, longest in zip(waited, [1, 2, 4, 4, 4], strict=True):
        assert longest / 2 <= seconds <= longest


def test_attempts_end_and_each_has_its_own_nonce() -> None:
    clock = ManualClock()
    nonces = []

    def down(attempt: Attempt) -> Unavailable:
        nonces.append(envelope_of(attempt, clock.now()).nonce)
        return DOWN

    with pytest.raises(Unavailable):
        drive(conversation(clock, attempts_max=3), [down] * 3)
    assert len(set(nonces)) == 3
    with pytest.raises(Unavailable):
        drive(conversation(clock), [DOWN], attempts_max=1)


def test_nothing_is_tried_again_when_the_time_is_up() -> None:
    clock, taken = ManualClock(), list[Attempt | Pause]()
    talk = conversation(clock, attempts_max=100, backoff_first_s=1.0, backoff_max_s=1.0)
    talk.until = 10.0

    def down(attempt: Attempt) -> Unavailable:
        taken.append(attempt)
        clock.advance(3.0)
        return DOWN

    with pytest.raises(Unavailable):
        drive(talk, [down] * 100)
    assert len(taken) == 4  # of three seconds each: `drive` takes none for pauses


def test_a_connection_that_was_gone_is_no_failure_of_the_node() -> None:
    steps, _ = drive(conversation(ManualClock(), nodes=2), [ConnectionGone("gone")] * 5 + [OK], attempts_max=1)
    assert (set(ports(steps)), pauses(steps)) == ({7000}, [])


def test_a_named_delay_is_honoured_at_the_same_node() -> None:
    body = wire.encode(["busy", "quota", None, 2500])
    steps, _ = drive(
        conversation(ManualClock(), nodes=2),
        [Response(429, {"retry-after": "3"}, body), Response(429, {"retry-after": "7"}, b""), OK],
    )
    assert (ports(steps), pauses(steps)) == ([7000] * 3, [2.5, 7.0])


def test_an_unavailable_node_that_names_no_delay_is_left_for_the_next() -> None:
    answer = answer_error(Unavailable("starting"))
    steps, _ = drive(conversation(ManualClock(), nodes=2), [Response(answer.status, {}, answer.body), OK])
    assert (ports(steps), pauses(steps)) == ([7000, 7001], [])
    named = answer_error(Unavailable("busy", retry_after_s=0.25))
    assert (named.status, named.headers) == (429, {"retry-after": "1"})


def test_a_delay_beyond_our_patience_goes_to_the_caller() -> None:
    with pytest.raises(Unavailable) as caught:
        drive(conversation(ManualClock()), [Response(429, {"retry-after": "3600"}, b"")])
    assert caught.value.retry_after_s == 3600


def test_refusals_are_final() -> None:
    body = wire.encode(["no-right", "no right to publish", "ask the owner", None])
    with pytest.raises(Refused, match="no right to publish") as caught:
        drive(conversation(ManualClock()), [Response(403, {}, body)])
    assert (caught.value.reason, caught.value.hint) == ("no-right", "ask the owner")
    for response, reason in [(Response(403, {}, b""), "unauthenticated"), (Response(404, {}, b"<p>"), "http-404")]:
        with pytest.raises(Refused) as caught:
            drive(conversation(ManualClock()), [response])
        assert caught.value.reason == reason


def stale(time: float, key: SigningKey = NODE_KEY, node: bytes = NODE, nonce: bytes | None = None) -> Any:
    def answer(attempt: Attempt) -> Response:
        asked = [part for part in attempt.head.split(b'"') if part.endswith(b"==")]
        own = nonce or b64decode(asked[0])
        return Response(401, {}, wire.encode(["stale", "too old", None, signed_time(key, node, own, time)]))

    return answer


def test_the_nodes_signed_time_is_followed_for_that_node() -> None:
    clock = ManualClock(1_000_000.0)
    talk = conversation(clock)
    steps, _ = drive(talk, [stale(1_003_600.0), OK])
    assert isinstance(steps[1], Attempt)
    envelope_of(steps[1], 1_003_600.0)
    clock.advance(10)
    steps, _ = drive(talk, [OK])
    assert isinstance(steps[0], Attempt)
    envelope_of(steps[0], 1_003_610.0)


@pytest.mark.parametrize(
    "lie",
    [
        stale(1_003_600.0, key=SigningKey.from_seed(b"x" * 32)),
        stale(1_003_600.0, node=b"m" * 16),
        stale(1_003_600.0, nonce=b"0" * 16),
        stale(1_000_000.0 + 86_401),
        Response(401, {}, wire.encode(["stale", "too old", None, b"junk"])),
        Response(401, {}, wire.encode(["stale", "too old", None, None])),
        Response(401, {}, wire.encode(["no-right", "x", None, b"junk"])),
    ],
)
def test_other_words_about_the_time_are_not_followed(lie: Any) -> None:
    with pytest.raises(Refused):
        drive(conversation(ManualClock(1_000_000.0)), [lie])


def test_time_is_followed_once_for_a_request() -> None:
    with pytest.raises(Refused):
        drive(conversation(ManualClock(1_000_000.0)), [stale(1_003_600.0), stale(1_007_200.0)])


@pytest.mark.parametrize(
    "url",
    [
        "http://node.example",
        "http://10.0.0.1:80",
        "ftp://127.0.0.1",
        "https://",
        "https://user@host",
        "https://host/path",
        "https://host?query",
        "https://host:99999",
        "127.0.0.1:80",
    ],
)
def test_addresses_that_are_not_served_are_misuse(url: str) -> None:
    with pytest.raises(Misuse):
        parse_address(Address(url, NODE))


def test_addresses_taken_apart() -> None:
    assert parse_address(Address("http://node.example", NODE), insecure=True).authority == "node.example"
    assert parse_address(Address("http://LOCALHOST:80/", NODE)).authority == "localhost"
    assert parse_address(Address("https://Node.example:443", NODE)).authority == "node.example"
    six = parse_address(Address("http://[::1]:7411", NODE))
    assert (six.host, six.port, six.authority) == ("::1", 7411, "[::1]:7411")
    with pytest.raises(Misuse, match="no address"):
        Conversation([], IDENTITY, ManualClock(), SeededEntropy(1), ClientLimits())
