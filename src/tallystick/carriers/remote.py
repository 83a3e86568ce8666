"""A node over HTTP: the client's side of `service.py`, for carrier and ledger alike.

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
    QUESTIONS_MAX,
    Fetched,
    LaneFront,
    NotStored,
    Outcome,
    Stored,
    frame_views,
    join_frames,
)
from tallystick.errors import Malformed
from tallystick.ledger.proofs import StateProof
from tallystick.runtime.client import HttpClient
from tallystick.runtime.http1 import PARCELS, Response, check_answer
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.promise import Promise
from tallystick.wire import Fields

WAIT_SLACK_S = 15.0  # what a long poll may take beyond the wait that it asks for


class RemoteNode:
    """Carrier and ledger of a node, through one client."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def close(self) -> None:
        self._http.close()

    # Carrier.

    def advertise(self, permit: bytes) -> None:
        self._admit(permit, "advertisements")

    def subscribe(self, permit: bytes) -> None:
        self._admit(permit, "subscriptions")

    def _admit(self, data: bytes, what: str) -> None:
        self._http.request("POST", f"/v1/topics/{Permit.decode(data).token.hex()}/{what}", body=data)

    def admit(self, data: bytes) -> None:
        """Advertise or subscribe, as the permit says."""
        is_publisher = Permit.decode(data).operation is Operation.ADVERTISE
        (self.advertise if is_publisher else self.subscribe)(data)

    def undo(self, order: bytes) -> None:
        self._http.request("POST", "/v1/undo", body=order)

    def put_locks(self, token: bytes, permit: bytes, locks: Sequence[bytes]) -> None:
        path, query = f"/v1/topics/{token.hex()}/locks", urlencode({"permit": permit.hex()})
        self._http.request("POST", path, query, join_frames(locks), PARCELS)

    def lock(self, name: bytes) -> bytes:
        return self._http.request("GET", f"/v1/locks/{name.hex()}").body

    def permit(self, identifier: bytes) -> bytes:
        return self._http.request("GET", f"/v1/permits/{identifier.hex()}").body

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        path = f"/v1/topics/{token.hex()}/parcels"
        answers = wire.decode(self._http.request("POST", path, "", join_frames(parcels), PARCELS).body, "answer")
        if not isinstance(answers, list) or len(answers) != len(parcels):
            raise Malformed(f"answer: expected {len(parcels)} outcomes")
        return [_outcome(answer) for answer in answers]

    def fetch(
        self,
        token: bytes,
        partition: int,
        permit: bytes,
        offset: int,
        *,
        bytes_max: int,
        wait_ms: int = 0,
        stored: bool = False,
        headers: bool = False,
        size: int | None = None,
        end: int | None = None,
    ) -> Fetched:
        query = {
            "partition": partition,
            "permit": permit.hex(),
            "offset": offset,
            "bytes": bytes_max,
            "wait": wait_ms,
            "stored": int(stored),
            "headers": int(headers),
        }
        if size is not None:
            query["size"] = size
        if end is not None:
            query["end"] = end
        path, timeout_s = f"/v1/topics/{token.hex()}/parcels", wait_ms / 1000 + WAIT_SLACK_S
        answer = self._http.request("GET", path, urlencode(query), timeout_s=timeout_s)
        meta, *parcels = frame_views(answer.body) or [memoryview(b"")]
        fields = Fields.parse(bytes(meta), "answer", 7)
        fields.version(1)
        first, count, anchored = fields.number(), fields.number(), fields.number()
        proof, end, retired = _hashes(fields), fields.number(), fields.number()
        if count != len(parcels):
            raise Malformed(f"answer: {count} parcels expected, found {len(parcels)}")
        return Fetched(first, tuple(parcels), anchored, proof, end, retired)

    def lane_front(
        self, token: bytes, partition: int, permit: bytes, publisher: bytes, lane: bytes, below: int, size: int
    ) -> LaneFront | None:
        question = _lane_question(token, partition, permit, publisher, lane, below, size)
        return _lane_front(self._http.request("GET", *question).body)

    def verdict(self, token: bytes, partition: int, offset: int) -> str:
        query = urlencode({"partition": partition, "offset": offset})
        value = wire.decode(self._http.request("GET", f"/v1/topics/{token.hex()}/verdict", query).body, "answer")
        return value if isinstance(value, str) else ""

    def inclusion(self, token: bytes, partition: int, size: int, offsets: Sequence[int]) -> list[list[bytes]]:
        """The path of each offset in the tree of `size` parcels, for the publisher to check."""
        body = wire.encode([partition, size, list(offsets)])
        paths = _list(self._http.request("POST", f"/v1/topics/{token.hex()}/inclusion", "", body).body)
        return [list(_hashes(Fields([path], "answer", 1))) for path in paths]

    def kafka_credentials(self, certificate: bytes) -> bytes:
        """How Kafka knows this principal, sealed to it."""
        return self._http.request("POST", "/v1/kafka/credentials", body=certificate).body

    # Ledger.

    def submit(self, transaction: bytes) -> None:
        """Return when the transaction is in a block."""
        self._http.request("POST", "/v1/transactions", body=transaction)

    def checkpoint(self) -> bytes:
        return self._http.request("GET", "/v1/ledger/checkpoint").body

    def consistency(self, old: int, new: int) -> list[bytes]:
        return _proof(self._http.request("GET", *_consistency_question(old, new)).body)

    def state(self, key: bytes) -> StateProof:
        return StateProof.decode(self._http.request("GET", *_state_question(key)).body)

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        answer = self._http.request("GET", "/v1/ledger/blocks", urlencode({"first": first, "most": most}))
        return [(block, list(transactions)) for block, transactions in _list(answer.body)]

    def receipt(self, token: bytes, partition: int, offset: int) -> bytes:
        query = urlencode({"token": token.hex(), "partition": partition, "offset": offset})
        return self._http.request("GET", "/v1/ledger/receipt", query).body

    def history(self, token: bytes, most: int = 1000, before: tuple[int, int] | None = None) -> list[list[Any]]:
        query: dict[str, object] = {"token": token.hex(), "most": most}
        if before is not None:
            query |= {"height": before[0], "index": before[1]}
        return _list(self._http.request("GET", "/v1/ledger/history", urlencode(query)).body)

    def audit(self, **query: object) -> list[list[Any]]:
        """Entries by `principal`, `token` (bytes), `kind`, `refused`, `first`, `end` (heights), `most`."""
        plain = {name: value.hex() if isinstance(value, bytes) else int(str(value)) for name, value in query.items()}
        return _list(self._http.request("GET", "/v1/ledger/audit", urlencode(plain)).body)

    # Many of the small questions above in few requests (`bundle`).

    def permits(self, identifiers: Sequence[bytes]) -> list[bytes]:
        """Those of them that the node has."""
        answers = self._ask([(f"/v1/permits/{identifier.hex()}", "") for identifier in identifiers])
        return [answer.body for answer in answers if answer.status == 200]

    def states(self, keys: Sequence[bytes]) -> list[StateProof]:
        return [StateProof.decode(answer) for answer in self._bundle([_state_question(key) for key in keys])]

    def consistencies(self, olds: Sequence[int], new: int) -> list[list[bytes]]:
        return [_proof(answer) for answer in self._bundle([_consistency_question(old, new) for old in olds])]

    def lane_fronts(
        self,
        token: bytes,
        partition: int,
        permit: bytes,
        lanes: Sequence[tuple[bytes, bytes]],
        below: int,
        size: int,
    ) -> list[LaneFront | None]:
        """Of `lanes`, (publisher, lane) each."""
        questions = [_lane_question(token, partition, permit, *lane, below, size) for lane in lanes]
        return [_lane_front(answer) for answer in self._bundle(questions)]

    def _bundle(self, questions: Sequence[tuple[str, str]]) -> list[bytes]:
        """What is refused of one is raised."""
        return [check_answer(answer).body for answer in self._ask(questions)]

    def _ask(self, questions: Sequence[tuple[str, str]]) -> list[Response]:
        found: list[Response] = []
        for first in range(0, len(questions), QUESTIONS_MAX):
            some = questions[first : first + QUESTIONS_MAX]
            body = wire.encode([list(question) for question in some])
            answers = _list(self._http.request("POST", BUNDLE_PATH, "", body).body)
            if len(answers) != len(some):
                raise Malformed(f"answer: {len(some)} answers expected, found {len(answers)}")
            found += [_bundled(answer) for answer in answers]
        return found


def _bundled(answer: Any) -> Response:
    match answer:
        case [int(status), bytes(body)]:
            return Response(status, {}, body)
    raise Malformed("answer: a status and a body expected")


def _lane_question(
    token: bytes, partition: int, permit: bytes, publisher: bytes, lane: bytes, below: int, size: int
) -> tuple[str, str]:
    query = {
        "partition": partition,
        "permit": permit.hex(),
        "publisher": publisher.hex(),
        "below": below,
        "size": size,
    }
    return f"/v1/topics/{token.hex()}/lanes/{lane.hex()}", urlencode(query)


def _lane_front(body: bytes) -> LaneFront | None:
    value = wire.decode(body, "answer")
    if value is None:
        return None
    fields = Fields(value, "answer", 4)
    return LaneFront(fields.number(), fields.octets(at_most=1 << 20), fields.number(), _hashes(fields))


def _state_question(key: bytes) -> tuple[str, str]:
    return "/v1/ledger/state", urlencode({"key": key.hex()})


def _consistency_question(old: int, new: int) -> tuple[str, str]:
    return "/v1/ledger/consistency", urlencode({"old": old, "new": new})


def _proof(body: bytes) -> list[bytes]:
    return list(_hashes(Fields([wire.decode(body, "proof")], "proof", 1)))


def _outcome(answer: Any) -> Outcome:
    match answer:
        case [int(again), list(promises)] if again in (0, 1):
            return Stored(tuple(Promise.decode(promise) for promise in promises), bool(again))
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
