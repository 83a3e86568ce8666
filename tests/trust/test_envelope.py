from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, algorithms
from http_message_signatures.exceptions import InvalidSignature
from http_message_signatures.resolvers import MappingKeyResolver
from hypothesis import given
from hypothesis import strategies as st

from tallystick import wire
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import Forged, Malformed, Misuse, Refused
from tallystick.trust import envelope as module
from tallystick.trust.envelope import (
    EVIDENCE_BYTES_MAX,
    UNAUTHENTICATED,
    Envelope,
    Headers,
    PlainHead,
    asked_hash,
    check_evidence,
    check_time,
    sign_answer,
    sign_request,
    signed_time,
    verify_answer,
    verify_head,
)

SEED = bytes(range(32))
KEY = SigningKey.from_seed(SEED)
PRINCIPAL, NODE, OTHER_NODE = b"p" * 16, b"n" * 16, b"o" * 16
NONCE = bytes(range(16))
NOW = 1_790_000_000.25
BODY = b"three notches"
COMPONENTS = ("@method", "@authority", "@path", "@query", "content-digest", "tally-node")


def signed(**changes: Any) -> Headers:
    fields: dict[str, Any] = {
        "method": "POST",
        "authority": "node.example:8443",
        "path": "/v1/publish",
        "query": "topic=a%20b",
        "body": BODY,
        "now": NOW,
        "nonce": NONCE,
    }
    signer = changes.pop("signer", KEY)
    node = changes.pop("node", NODE)
    return sign_request(signer, PRINCIPAL, node, **(fields | changes))


def resolve(principal: bytes) -> VerifyKey | None:
    return KEY.public if principal == PRINCIPAL else None


def verified(headers: Headers, **changes: Any) -> Envelope:
    fields: dict[str, Any] = {
        "method": "POST",
        "authority": "node.example:8443",
        "path": "/v1/publish",
        "query": "topic=a%20b",
        "body": BODY,
        "resolve_key": resolve,
        "node_id": NODE,
        "now": NOW,
        "delay_max_s": 60.0,
        "skew_max_s": 5.0,
    } | changes
    head = PlainHead(fields["method"], fields["authority"], fields["path"], fields["query"], headers)
    envelope = verify_head(head, fields["resolve_key"], fields["node_id"])
    envelope.check_body(fields["body"])
    envelope.check_fresh(fields["now"], fields["delay_max_s"], fields["skew_max_s"])
    return envelope


def reason_of(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.reason


def test_a_signed_request_verifies_and_says_who_asked_what() -> None:
    envelope = verified(signed())
    assert (envelope.principal, envelope.node, envelope.nonce) == (PRINCIPAL, NODE, NONCE)
    assert (envelope.created, envelope.method, envelope.path) == (1_790_000_000, "POST", "/v1/publish")
    assert len(envelope.base_hash) == 32


def test_authorities_are_compared_in_lower_case() -> None:
    assert verified(signed(), authority="NODE.example:8443").authority == "node.example:8443"


def test_an_empty_body_and_query_are_signed_too() -> None:
    headers = signed(method="GET", query="", body=b"")
    verified(headers, method="GET", query="", body=b"")
    assert reason_of(lambda: verified(headers, method="GET", query="", body=b"x")) == "bad-signature"


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PUT"},
        {"authority": "node.example:8444"},
        {"path": "/v1/publish/"},
        {"path": "/v1/publisi"},
        {"query": "topic=a%20c"},
        {"query": ""},
        {"body": BODY + b"."},
        {"body": b""},
    ],
)
def test_no_covered_part_of_the_request_can_be_altered(change: dict[str, Any]) -> None:
    assert reason_of(lambda: verified(signed(), **change)) == "bad-signature"


def test_no_byte_of_the_signed_headers_can_be_altered() -> None:
    headers = list(signed())
    for index, (name, value) in enumerate(headers):
        for position in range(len(value)):
            altered = bytearray(value)
            altered[position] ^= 1
            tampered = [*headers[:index], (name, bytes(altered)), *headers[index + 1 :]]
            assert reason_of(partial(verified, tampered)) in UNAUTHENTICATED


def test_a_digest_exchanged_together_with_the_body_is_refused() -> None:
    other = dict(signed(body=b"four notches"))
    headers = [(name, other[name] if name == b"content-digest" else value) for name, value in signed()]
    assert reason_of(lambda: verified(headers, body=b"four notches")) == "bad-signature"


def test_a_node_cannot_replay_a_request_to_another() -> None:
    assert reason_of(lambda: verified(signed(), node_id=OTHER_NODE)) == "wrong-node"
    verified(signed(), node_id=NODE)  # what a node would accept that did not ask whom it addresses
    readdressed = [(name, OTHER_NODE.hex().encode() if name == b"tally-node" else v) for name, v in signed()]
    assert reason_of(lambda: verified(readdressed, node_id=OTHER_NODE)) == "bad-signature"


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (NOW + 66, "stale"),
        (NOW + 10**6, "stale"),
        (NOW - 6, "future"),
        (NOW + 64, None),
        (NOW - 4, None),
    ],
)
def test_freshness_has_a_window(now: float, reason: str | None) -> None:
    if reason is None:
        verified(signed(), now=now)
    else:
        assert reason_of(lambda: verified(signed(), now=now)) == reason


def test_an_old_forgery_is_not_told_that_it_is_old() -> None:
    stranger = SigningKey.from_seed(b"s" * 32)
    assert reason_of(lambda: verified(signed(signer=stranger), now=NOW + 1000)) == "bad-signature"


def test_strangers_and_unsigned_requests() -> None:
    assert reason_of(lambda: verified([])) == "unsigned"
    assert reason_of(lambda: verified(list(signed())[:3])) == "unsigned"
    assert reason_of(lambda: verified(signed(), resolve_key=lambda _: None)) == "unknown-principal"
    stranger = SigningKey.from_seed(b"s" * 32)
    assert reason_of(lambda: verified(signed(), resolve_key=lambda _: stranger.public)) == "bad-signature"


@pytest.mark.parametrize("name", [b"signature", b"signature-input", b"tally-node", b"content-digest"])
def test_a_repeated_header_is_refused_whichever_comes_first(name: bytes) -> None:
    headers = list(signed())
    again = (name, dict(headers)[name])
    assert reason_of(lambda: verified([*headers, again])) == "bad-signature"
    assert reason_of(lambda: verified([again, *headers])) == "bad-signature"


@pytest.mark.parametrize(
    "change",
    [
        {"path": '/x\n"@query": ?forged'},
        {"path": "/x\r\nevil: 1"},
        {"path": "no-slash"},
        {"path": "/a b"},
        {"path": "/a?b"},
        {"path": "/ä"},
        {"path": "/" + "p" * 512},
        {"query": "a" * 1024},
        {"query": "a\nb"},
        {"query": "a#b"},
        {"authority": "node.example\r\nx: y"},
        {"authority": "NODE"},
        {"method": "POST\n"},
        {"method": "get"},
        {"nonce": b"short"},
        {"node": b"short"},
        {"now": -1.0},
        {"now": 1e13},
    ],
)
def test_what_could_forge_lines_of_the_base_is_neither_signed_nor_accepted(change: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        signed(**change)
    if not {"nonce", "node", "now"} & set(change) and change.get("authority") != "NODE":
        assert reason_of(lambda: verified(signed(), **change)) == "bad-signature"


def test_without_the_check_of_line_feeds_two_requests_share_one_base() -> None:
    honest = Envelope("GET", "h", "/a", "b", bytes(32), NODE, PRINCIPAL, 1, NONCE, b"")
    forged = replace(honest, path='/a\n"@query": ?b\n"x": ', query="")
    assert module._fault(honest) is None
    assert module._fault(forged) is not None
    assert forged.base.startswith(honest.base[: honest.base.index(b'"content-digest"')])


def test_evidence_outlives_body_and_window() -> None:
    envelope = verified(signed())
    evidence = envelope.evidence()
    assert BODY not in evidence
    again = check_evidence(evidence, resolve)
    assert again == envelope
    assert again.base_hash == envelope.base_hash
    assert reason_of(lambda: check_evidence(evidence, lambda _: None)) == "unknown-principal"


def test_no_request_is_too_long_to_be_evidence() -> None:
    longest = {"method": "M" * 16, "authority": "a" * 255, "path": "/" + "p" * 511, "query": "q" * 1023}
    created = 10**12 - 1
    envelope = verified(signed(**longest, now=created), **longest, now=created)
    assert len(envelope.evidence()) <= EVIDENCE_BYTES_MAX
    assert check_evidence(envelope.evidence(), resolve) == envelope


def test_no_byte_of_evidence_can_be_altered() -> None:
    evidence = verified(signed()).evidence()
    for position in range(len(evidence)):
        altered = bytearray(evidence)
        altered[position] ^= 1
        with pytest.raises(Refused):
            check_evidence(bytes(altered), resolve)


def test_nobody_is_framed_by_invented_evidence() -> None:
    fields = wire.decode(verified(signed()).evidence())
    for index, value in [
        (3, "/v1/erase"),
        (3, '/v1\n"x": '),
        (5, bytes(32)),
        (7, b"q" * 16),
        (8, 1),
        (10, b""),
    ]:
        with pytest.raises(Refused):
            check_evidence(wire.encode([*fields[:index], value, *fields[index + 1 :]]), resolve)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_evidence(data: bytes) -> None:
    with pytest.raises(Refused):
        check_evidence(data, resolve)


def test_signed_time_counts_for_one_node_and_one_request() -> None:
    node = SigningKey.from_seed(b"k" * 32)
    answer = signed_time(node, NODE, NONCE, NOW)
    assert check_time(answer, node.public, NODE, NONCE) == NOW
    for key, node_id, nonce in [
        (node.public, OTHER_NODE, NONCE),
        (node.public, NODE, b"m" * 16),
        (KEY.public, NODE, NONCE),
    ]:
        with pytest.raises(Forged):
            check_time(answer, key, node_id, nonce)
    with pytest.raises(Malformed):
        check_time(wire.encode([1, 2]), node.public, NODE, NONCE)


def test_a_signed_answer_counts_for_one_request() -> None:
    """The example of docs/formats/envelope.md, and what it is not good for."""
    node = SigningKey.from_seed(b"k" * 32)
    asked = asked_hash(PlainHead("POST", "node.example:8443", "/v1/publish", "topic=a%20b", signed()))
    assert asked.hex() == "2e1b110ce996481bdcfa60ba1d86e804ce0c1c8545995de3fe6da3c9f370ad70"
    header = sign_answer(node, NODE, asked, 200, b"yes")
    assert header == "8kfbFjLYUa/6yep9fFOx2uBweMRPfk90F4BtcF4IyDubcFF8tzY/q6mY1ZTjDIDf2igJOnaA1MG4u/WoN0iqDA=="
    verify_answer(header, node.public, NODE, asked, 200, b"yes")
    again = asked_hash(PlainHead("POST", "node.example:8443", "/v1/publish", "topic=a%20b", signed(nonce=b"m" * 16)))
    for text, key, node_id, request, status, body in [
        ("", node.public, NODE, asked, 200, b"yes"),
        (header[:-1], node.public, NODE, asked, 200, b"yes"),
        (header, KEY.public, NODE, asked, 200, b"yes"),
        (header, node.public, OTHER_NODE, asked, 200, b"yes"),
        (header, node.public, NODE, again, 200, b"yes"),
        (header, node.public, NODE, asked, 403, b"yes"),
        (header, node.public, NODE, asked, 200, b"no"),
    ]:
        with pytest.raises(Forged):
            verify_answer(text, key, node_id, request, status, body)


# Both directions against an independent implementation of RFC 9421.


@dataclass
class Message:
    method: str
    url: str
    headers: dict[str, str]


RESOLVER = MappingKeyResolver(
    public_keys={PRINCIPAL.hex(): Ed25519PublicKey.from_public_bytes(KEY.public.raw)},
    private_keys={PRINCIPAL.hex(): Ed25519PrivateKey.from_private_bytes(SEED)},
)


class VerifierAt(HTTPMessageVerifier):  # type: ignore[misc]
    """The library reads the clock itself; freshness is not what is compared here."""

    def validate_created_and_expires(self, sig_input: Any, max_age: Any = None) -> None:
        assert sig_input.params["created"] == int(NOW)


URL = "https://node.example:8443/v1/publish?topic=a%20b"


def test_the_library_accepts_what_we_sign() -> None:
    headers = {name.decode(): value.decode() for name, value in signed()}
    verifier = VerifierAt(signature_algorithm=algorithms.ED25519, key_resolver=RESOLVER)
    results = verifier.verify(
        Message("POST", URL, headers), expect_tag="tallystick", require_components=COMPONENTS, body=BODY
    )
    assert results[0].body == BODY
    with pytest.raises(InvalidSignature):
        verifier.verify(Message("PUT", URL, headers), expect_tag="tallystick", body=BODY)


def test_we_accept_what_the_library_signs_and_the_bytes_are_the_same() -> None:
    digest = dict(signed())[b"content-digest"].decode()
    message = Message("POST", URL, {"content-digest": digest, "tally-node": NODE.hex()})
    HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=RESOLVER).sign(
        message,
        key_id=PRINCIPAL.hex(),
        created=datetime.datetime.fromtimestamp(NOW, tz=datetime.UTC),
        nonce="AAECAwQFBgcICQoLDA0ODw==",
        tag="tallystick",
        label="tally",
        covered_component_ids=COMPONENTS,
        use_existing_digest=True,
        body=BODY,
    )
    theirs = [(name.lower().encode(), value.encode()) for name, value in message.headers.items()]
    assert theirs == list(signed())
    verified(theirs)
