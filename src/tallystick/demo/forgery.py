"""What attackers write themselves: requests about which everything may be a lie, permits and undo orders under the
wrong key, records that were never sealed."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from tallystick.carriers.carrier import join_frames
from tallystick.client.session import Session
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Unavailable
from tallystick.runtime.http1 import Response, ResponseReader, encode_head
from tallystick.trust.envelope import Envelope, PlainHead, sign_request, verify_head
from tallystick.trust.permit import Operation, Permit, UndoOrder

JUNK = b'{"speed": 3, "note": "not sealed at all"}'
_ANSWER_BYTES_MAX = 64 << 20
_ANSWER_S = 20.0


def exchange(
    session: Session,
    method: str,
    path: str,
    query: str = "",
    body: bytes = b"",
    *,
    url: str | None = None,
    node: bytes | None = None,
    principal: bytes | None = None,
    key: SigningKey | None = None,
    now: float | None = None,
    nonce: bytes | None = None,
    sent: bytes | None = None,
    headers: Sequence[tuple[bytes, bytes]] | None = None,
) -> Response:
    """Send one signed request, without a client's retries, lying about whatever the caller names. Returns the answer.

    `sent` is the body that travels.
    """
    identity = session.identity
    address = urlsplit(url or identity.node_urls[0]).netloc
    if headers is None:
        headers = sign_request(
            key or identity.signing_key,
            principal or identity.principal,
            node or identity.nodes[0].subject,
            method=method,
            authority=address,
            path=path,
            query=query,
            body=body,
            now=session.clock.now() if now is None else now,
            nonce=nonce or session.entropy.bytes(16),
        )
    body = body if sent is None else sent
    head = encode_head(method, f"{path}?{query}" if query else path, address, headers, len(body))
    return send_bytes(address, head + body)


def send_bytes(address: str, data: bytes) -> Response:
    """Bytes on a connection of their own, and the HTTP answer to them."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=_ANSWER_S) as connection:
        connection.sendall(data)
        answer = ResponseReader(_ANSWER_BYTES_MAX)
        while answer.response is None:
            part = connection.recv(1 << 16)
            if not part:
                raise Unavailable(f"{address} closed without an answer")
            answer.feed(part)
        return answer.response


def phony_permit(session: Session, like: Permit, **changes: Any) -> Permit:
    """A permit in one's own name, signed by oneself."""
    identity = session.identity
    return replace(like, principal=identity.principal, signing_key=identity.signing_key.public.raw, **changes).sign(
        identity.signing_key
    )


def phony_order(permit: Permit, key: SigningKey, *, operation: Operation | None = None) -> UndoOrder:
    """An order to take a permit back, signed by whoever likes to."""
    return UndoOrder(
        instance=permit.instance,
        identifier=permit.identifier,
        operation=permit.operation if operation is None else operation,
        token=permit.token,
        tenant=permit.tenant,
        principal=permit.principal,
        time_ms=1,
        authority=permit.authority,
    ).sign(key)


def envelope_of(session: Session, token: bytes) -> Envelope:
    """A principal's signed request to publish junk, as whoever carries it can keep it."""
    identity, body = session.identity, join_frames([JUNK])
    target = {"method": "POST", "authority": "node", "path": f"/v1/topics/{token.hex()}/parcels", "query": ""}
    node, now = identity.nodes[0].subject, session.clock.now()
    headers = sign_request(
        identity.signing_key, identity.principal, node, **target, body=body, now=now, nonce=session.entropy.bytes(16)
    )
    return verify_head(PlainHead(**target, headers=headers), lambda _: identity.signing_key.public, node)
