"""Which checkpoints a witness cosigned, for strangers who compare what they were shown: a page, and notes as text.

Threat: a ledger that shows two histories to two people. A witness cosigns one, but only whoever sees its signatures can
tell; here anybody can, without asking the ledger's operator. It is read-only and unsigned, since the notes themselves
are signed. Threat: strangers who ask and ask. An answer is made once for each change and is bounded, and an address
may ask as often as `ASKING` says.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

from tallystick.errors import Unavailable
from tallystick.ledger.witness import Cosigned, Witness
from tallystick.page.html import Html, page, style, table, tag
from tallystick.runtime.http1 import Answer, answer_error
from tallystick.runtime.router import Buckets, Rate, Request, Router
from tallystick.runtime.sources import Clock
from tallystick.wire import show_time

ASKING = Rate(per_s=2.0, most=20.0)  # of one address
ADDRESSES_MAX = 4_096  # whose rate is remembered
ANSWER_BYTES_MAX = 1 << 20  # of notes; older ones are left out

_STYLE = b64encode(sha256(style().encode()).digest()).decode()
HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class _Made(NamedTuple):
    """Both answers, and of how many cosignatures."""

    changes: int
    page: bytes
    notes: bytes


class WitnessPages:
    """`GET /` is the page, `GET /checkpoints` the notes, with an empty line between two."""

    def __init__(self, witness: Witness, clock: Clock) -> None:
        self._witness, self._clock = witness, clock
        self._asking: Buckets[str] = Buckets(ADDRESSES_MAX)
        self._made = _Made(-1, b"", b"")

    def add_routes(self, router: Router) -> None:
        router.add("GET", "/", self._show)
        router.add("GET", "/checkpoints", self._tell)

    async def _show(self, request: Request) -> Answer:
        return await self._answer(request, "text/html; charset=utf-8", is_page=True)

    async def _tell(self, request: Request) -> Answer:
        return await self._answer(request, "text/plain; charset=utf-8", is_page=False)

    async def _answer(self, request: Request, content_type: str, *, is_page: bool) -> Answer:
        wait_s = self._asking.charge(request.client[0], ASKING, 1, self._clock.monotonic())
        if wait_s:
            return answer_error(Unavailable("too many questions from this address", retry_after_s=wait_s))
        if self._made.changes != self._witness.changes:
            self._made = await asyncio.to_thread(self._make)  # it may wait for a checkpoint to come to the disk
        return Answer(200, self._made.page if is_page else self._made.notes, content_type, HEADERS)

    def _make(self) -> _Made:
        changes, found = self._witness.changes, newest(self._witness.cosigned())
        notes = b"\n".join(one.note for one in found)
        return _Made(changes, show(self._witness.signer.verifier.encode(), found).encode(), notes)


def newest(found: list[Cosigned], bytes_max: int = ANSWER_BYTES_MAX) -> list[Cosigned]:
    """The newest, as many as an answer holds."""
    by_age = sorted(found, key=lambda one: one.time_s, reverse=True)
    sizes = accumulate(len(one.note) for one in by_age)
    return by_age[: sum(size <= bytes_max for size in sizes)]


def show(vkey: str, found: list[Cosigned]) -> str:
    """The page, of the witness with this verifier key."""
    name = vkey.partition("+")[0]
    lead = (
        "This witness signs one history of each ledger. If a checkpoint that you were shown has the height of one here "
        "and another root, somebody shows two histories: keep both notes."
    )
    origins = sorted({one.checkpoint.origin for one in found})
    return page(
        f"What {name} cosigned",
        tag("h1", f"What {name} cosigned"),
        tag("p", lead, class_="lead"),
        tag("p", "Its key: ", tag("code", vkey)),
        tag("p", tag("a", "The notes as text", href="checkpoints"), ", for machines."),
        [_ledger(origin, [one for one in found if one.checkpoint.origin == origin]) for origin in origins],
        None if found else tag("p", "It has cosigned nothing yet."),
    )


def _ledger(origin: str, found: list[Cosigned]) -> Html:
    rows = [
        [
            "–" if one.height is None else one.height,
            show_time(one.time_s * 1000),
            one.checkpoint.size,
            tag("code", one.checkpoint.root.hex()),
            tag("details", tag("summary", "note"), tag("pre", one.note.decode())),
        ]
        for one in found
    ]
    columns = ["height", "cosigned", "size", "root", "note"]
    return tag("section", tag("h2", origin), table(columns, rows, numbers=(0, 2)))
