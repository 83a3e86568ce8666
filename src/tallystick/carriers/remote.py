"""A node over HTTP: the client's side of `desk.py`, for carrier and ledger alike.

Nothing that comes back is trusted here; promises are held to the node's key by the publisher, ranges to their anchors
by the reader, checkpoints and state to the trust file by the ledger's view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from tallystick import wire
from tallystick.carriers.carrier import (
    BUNDLE_PATH,
    FRAMES_PATH,
    QUESTIONS_MAX,
    Fetch,
    Fetched,
    LaneFront,
    LaneSought,
    NotStored,
    Outcome,
    Stored,
    frame_views,
    join_frames,
    split_frames,
)
from tallystick.errors import Malformed, Unavailable
from tallystick.ledger.proofs import StateProof
from tallystick.runtime.client import HttpClient
from tallystick.runtime.http1 import PARCELS, Response, check_answer
from tallystick.trust.permit import Permit
from tallystick.trust.promise import decode_promise
from tallystick.trust.receipt import AnchoredBefore
from tallystick.wire import Fields

WAIT_SLACK_S = 15.0  # what a long poll may take beyond the wait that it asks for
TOGETHER_MAX = 8  # times that proofs are asked for, until no block comes between them


class RemoteNode:
    """Carrier and ledger of a node, through one client."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def trouble(self) -> str:
        """Return what keeps the node from serving, or the ledger from vouching for what it stores, in words; empty
        where nothing does."""
        return self._http.trouble("node")

    def close(self) -> None:
        self._http.close()

    def each(self) -> dict[bytes, RemoteNode]:
        """Each of several nodes alone, by its identifier."""
        return {name: RemoteNode(http) for name, http in self._http.each().items()}

    # Carrier.

    def ask_another(self) -> int:
        return self._http.ask_another()

    def advertise(self, permit: bytes) -> None:
        self._admit(permit, "advertisements")

    def subscribe(self, permit: bytes) -> None:
        self._admit(permit, "subscriptions")

    def _admit(self, data: bytes, what: str) -> None:
        self.post(f"/v1/topics/{Permit.decode(data).token.hex()}/{what}", data)

    def undo(self, order: bytes) -> None:
        self.post("/v1/undo", order)

    def put_locks(self, token: bytes, permit: bytes, locks: Sequence[bytes]) -> None:
        path, query = _question(f"/v1/topics/{token.hex()}/locks", permit=permit)
        self._http.request("POST", path, query, join_frames(locks), PARCELS)

    def lock(self, name: bytes) -> bytes:
        return self._get(f"/v1/locks/{name.hex()}")

    def permit(self, identifier: bytes) -> bytes:
        return self._get(f"/v1/permits/{identifier.hex()}")

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        path = f"/v1/topics/{token.hex()}/parcels"
        answers = wire.decode(self._http.request("POST", path, "", join_frames(parcels), PARCELS).body, "answer")
        if not isinstance(answers, list) or len(answers) != len(parcels):
            raise Malformed(f"answer: expected {len(parcels)} outcomes")
        return [_outcome(answer) for answer in answers]

    def fetch(self, wanted: Fetch) -> Fetched:
        path, query = _question(
            f"/v1/topics/{wanted.token.hex()}/parcels",
            partition=wanted.partition,
            permit=wanted.permit,
            offset=wanted.offset,
            bytes=wanted.bytes_max,
            wait=wanted.wait_ms,
            stored=wanted.stored,
            headers=wanted.headers,
            size=wanted.size,
            end=wanted.end,
        )
        answer = self._http.request("GET", path, query, timeout_s=wanted.wait_ms / 1000 + WAIT_SLACK_S)
        meta, *parcels = frame_views(answer.body) or [memoryview(b"")]
        fields = Fields.parse(bytes(meta), "answer", 7)
        fields.version(1)
        first, count, anchored = fields.number(), fields.number(), fields.number()
        proof, end, retired = _hashes(fields), fields.number(), fields.number()
        if count != len(parcels):
            raise Malformed(f"answer: {count} parcels expected, found {len(parcels)}")
        return Fetched(first, tuple(parcels), anchored, proof, end, retired)

    def lane_front(self, sought: LaneSought) -> LaneFront | None:
        return _lane_front(self._http.request("GET", *_lane_question(sought)).body)

    def verdict(self, token: bytes, partition: int, offset: int) -> str:
        answer = self._get(f"/v1/topics/{token.hex()}/verdict", partition=partition, offset=offset)
        value = wire.decode(answer, "answer")
        return value if isinstance(value, str) else ""

    def anchored_before(self, token: bytes, partition: int, publisher: bytes, size: int) -> AnchoredBefore | None:
        """The partition's last anchor before a publisher's key was revoked, as far as the node found one."""
        path = f"/v1/topics/{token.hex()}/anchored-before"
        answer = self._get(path, partition=partition, publisher=publisher, size=size)
        return AnchoredBefore.decode(answer) if answer else None

    def inclusion(self, token: bytes, partition: int, size: int, offsets: Sequence[int]) -> list[list[bytes]]:
        """The path of each offset in the tree of `size` parcels, for the publisher to check."""
        body = wire.encode([partition, size, list(offsets)])
        paths = _list(self.post(f"/v1/topics/{token.hex()}/inclusion", body))
        return [list(_hashes(Fields([path], "answer", 1))) for path in paths]

    def kafka_credentials(self, certificate: bytes) -> bytes:
        """How Kafka knows this principal, sealed to it."""
        return self.post("/v1/kafka/credentials", certificate)

    def exchange_frames(self, frames: Sequence[bytes]) -> list[bytes]:
        """Hand an overlay's relay frames of this principal's. Returns what the relay has for it."""
        return split_frames(self._http.request("POST", FRAMES_PATH, "", join_frames(frames), PARCELS).body)

    # Ledger.

    def submit(self, transaction: bytes) -> None:
        """Return when the transaction is in a block."""
        self.post("/v1/transactions", transaction)

    def checkpoint(self) -> bytes:
        return self._get("/v1/ledger/checkpoint")

    def consistency(self, old: int, new: int) -> list[bytes]:
        return _proof(self._get("/v1/ledger/consistency", old=old, new=new))

    def state(self, key: bytes) -> StateProof:
        return StateProof.decode(self._get("/v1/ledger/state", key=key))

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        answer = self._get("/v1/ledger/blocks", first=first, most=most)
        return [(block, list(transactions)) for block, transactions in _list(answer)]

    def receipt(self, token: bytes, partition: int, offset: int) -> bytes:
        return self._get("/v1/ledger/receipt", token=token, partition=partition, offset=offset)

    def history(self, token: bytes, most: int = 1000, before: tuple[int, int] | None = None) -> list[list[Any]]:
        height, index = before or (None, None)
        return _list(self._get("/v1/ledger/history", token=token, most=most, height=height, index=index))

    def audit(self, **query: bytes | int) -> list[list[Any]]:
        """Entries by `principal`, `token` (bytes), `kind`, `refused`, `first`, `end` (heights), `most`."""
        return _list(self._get("/v1/ledger/audit", **query))

    # Many of the small questions above in few requests (`bundle`).

    def permits(self, identifiers: Sequence[bytes]) -> list[bytes]:
        """Those of them that the node has."""
        answers = self._ask([(f"/v1/permits/{identifier.hex()}", "") for identifier in identifiers])
        return [answer.body for answer in answers if answer.status == 200]

    def states(self, keys: Sequence[bytes]) -> list[StateProof]:
        answers = self._bundle([_question("/v1/ledger/state", key=key) for key in keys])
        return [StateProof.decode(answer) for answer in answers]

    def states_together(self, keys: Sequence[bytes]) -> list[StateProof]:
        """The same under one checkpoint: they are asked for again where a block came between two of them."""
        for _ in range(TOGETHER_MAX):
            states = self.states(keys)
            if len({one.note for one in states}) == 1:
                return states
        raise Unavailable("ledger: a block came between proofs each time", hint="try again", retry_after_s=1.0)

    def consistencies(self, olds: Sequence[int], new: int) -> list[list[bytes]]:
        questions = [_question("/v1/ledger/consistency", old=old, new=new) for old in olds]
        return [_proof(answer) for answer in self._bundle(questions)]

    def lane_fronts(self, sought: Sequence[LaneSought]) -> list[LaneFront | None]:
        return [_lane_front(answer) for answer in self._bundle([_lane_question(one) for one in sought])]

    def _bundle(self, questions: Sequence[tuple[str, str]]) -> list[bytes]:
        """What is refused of one is raised."""
        return [check_answer(answer).body for answer in self._ask(questions)]

    def _ask(self, questions: Sequence[tuple[str, str]]) -> list[Response]:
        found: list[Response] = []
        for first in range(0, len(questions), QUESTIONS_MAX):
            some = questions[first : first + QUESTIONS_MAX]
            answers = _list(self.post(BUNDLE_PATH, wire.encode([list(question) for question in some])))
            if len(answers) != len(some):
                raise Malformed(f"answer: {len(some)} answers expected, found {len(answers)}")
            found += [_bundled(answer) for answer in answers]
        return found

    def _get(self, path: str, **query: bytes | int | None) -> bytes:
        return self._http.request("GET", *_question(path, **query)).body

    def post(self, path: str, body: bytes) -> bytes:
        """A request that only some carriers know."""
        return self._http.request("POST", path, body=body).body


def _question(path: str, **query: bytes | int | None) -> tuple[str, str]:
    """A path and its query: bytes in hexadecimal, and what is None left out."""
    given = {name: value for name, value in query.items() if value is not None}
    return path, urlencode({n: value.hex() if isinstance(value, bytes) else int(value) for n, value in given.items()})


def _bundled(answer: Any) -> Response:
    match answer:
        case [int(status), bytes(body)]:
            return Response(status, {}, body)
    raise Malformed("answer: a status and a body expected")


def _lane_question(sought: LaneSought) -> tuple[str, str]:
    query = sought._asdict()
    return _question(f"/v1/topics/{query.pop('token').hex()}/lanes/{query.pop('lane').hex()}", **query)


def _lane_front(body: bytes) -> LaneFront | None:
    value = wire.decode(body, "answer")
    if value is None:
        return None
    fields = Fields(value, "answer", 4)
    return LaneFront(fields.number(), fields.octets(at_most=1 << 20), fields.number(), _hashes(fields))


def _proof(body: bytes) -> list[bytes]:
    return list(_hashes(Fields([wire.decode(body, "proof")], "proof", 1)))


def _outcome(answer: Any) -> Outcome:
    match answer:
        case [int(again), list(promises)] if again in (0, 1):
            return Stored(tuple(decode_promise(promise) for promise in promises), bool(again))
        case [2, str(reason), str(message), expected]:
            return NotStored(reason, message, expected if type(expected) is int else None)
    raise Malformed("answer: not the outcome of a parcel")


def _hashes(fields: Fields) -> tuple[bytes, ...]:
    items = fields.items(128)
    if not all(type(item) is bytes and len(item) == 32 for item in items):
        raise Malformed("answer: a proof is made of hashes")
    return tuple(items)


def _list(body: bytes) -> list[Any]:
    value = wire.decode(body, "answer")
    if not isinstance(value, list):
        raise Malformed("answer: expected an array")
    return value
