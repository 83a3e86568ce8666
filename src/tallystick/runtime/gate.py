"""The gate: signed requests in, envelopes to the handler, the right face to everybody.

Cheapest first, and no body is read for a stranger: head and signature, freshness, then the body against its
digest. Before the signature holds every refusal looks the same; after it, the peer is told what is wrong, and
one whose clock is off also what time it is here, signed. Replays within the window are the handler's to stop:
it gets the envelope, and the guards keep the nonces.

What nobody can be held to (no signature, a stale or future one, a replay: anybody may have sent those bytes) is told
to `on_junk`, which counts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused, TallystickError, Unavailable
from tallystick.runtime.clock import Clock
from tallystick.runtime.http1 import Answer, answer_error, refuse_unauthenticated
from tallystick.runtime.router import Handler, Request, refuse
from tallystick.trust.envelope import UNAUTHENTICATED, Envelope, Headers, ResolveKey, signed_time, verify_head

log = logging.getLogger(__name__)

SignedHandler = Callable[[Request, Envelope, bytes], Awaitable[Answer]]

NOBODYS = UNAUTHENTICATED | {"stale", "future", "duplicate"}


class RequestHead(Protocol):
    """What a signature covers of a request, beside its body."""

    @property
    def method(self) -> str: ...

    @property
    def authority(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def query(self) -> str: ...

    @property
    def headers(self) -> Headers: ...


def _count_nothing(method: str, reason: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Gate:
    """What a node needs to know to judge a signed request."""

    node: bytes
    key: SigningKey  # signs the time
    resolve_key: ResolveKey
    clock: Clock
    delay_max_s: float = 60.0  # how long an honest request may be under way
    skew_max_s: float = 5.0  # how far an honest clock may be off
    on_junk: Callable[[str, str], None] = _count_nothing  # method and reason of what nobody can be held to

    def signed(self, handler: SignedHandler) -> Handler:
        """`handler` for signed requests, as a handler for the router."""

        async def handle(request: Request) -> Answer:
            try:
                envelope = self.verify(request)
            except Refused:
                return await refuse(request)
            try:
                self.check_fresh(envelope)
                body = await request.body()
                envelope.check_body(body)
                return await handler(request, envelope, body)
            except TallystickError as error:
                await refuse(request)
                return self.explain(request, envelope, error)
            except Exception:
                log.exception("fault while answering %s %s", request.method, request.path)
                return answer_error(Unavailable("the node failed to answer; its log says why"))

        return handle

    def verify(self, head: RequestHead) -> Envelope:
        """The envelope of a request whose signature holds; its body has yet to be held to it."""
        try:
            return verify_head(
                method=head.method,
                authority=head.authority,
                path=head.path,
                query=head.query,
                headers=head.headers,
                resolve_key=self.resolve_key,
                node_id=self.node,
            )
        except Refused as error:
            log.debug("refused %s %s: %s", head.method, head.path, error)
            self.on_junk(head.method, error.reason)
            raise

    def check_fresh(self, envelope: Envelope) -> None:
        envelope.check_fresh(self.clock.now(), self.delay_max_s, self.skew_max_s)

    def explain(self, head: RequestHead, envelope: Envelope, error: TallystickError) -> Answer:
        """The answer to a peer whose signature holds."""
        log.info("refused %s %s: %s", head.method, head.path, error)
        reason = error.reason if isinstance(error, Refused) else ""
        if reason in NOBODYS:
            self.on_junk(head.method, reason)
        if reason in UNAUTHENTICATED:  # a signed head before another's body
            return refuse_unauthenticated()
        if reason in ("stale", "future"):
            return answer_error(error, signed_time(self.key, self.node, envelope.nonce, self.clock.now()))
        return answer_error(error)
