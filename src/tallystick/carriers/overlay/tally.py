"""Which of the outcomes that relays answer to one publish count.

Threat: up to f relays of the edge that lie about what became of a parcel. A promise that enough relays signed together
counts whoever brings it, since it is held to the ledger's plan (`known_plans.py`). A refusal counts when f+1 refuse for
one reason, and the promise of one relay when f+1 promise the same place: one of them is honest.

So it is with a joint promise of a place that an anchor covers by now: it may be an old one, of a place that went to
another parcel (the first anchor wins). A relay that shows it again, quicker than the others, must not make a publisher
send the parcel for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tallystick.carriers.carrier import NotStored, Outcome, Stored
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Refused, TallystickError
from tallystick.parcel.parcel import Parcel
from tallystick.trust.plan import VirtualNode
from tallystick.trust.promise import JointPromise, Promise

log = logging.getLogger(__name__)

Vows = dict[bytes, Promise | JointPromise]  # by relay


@dataclass
class _Heard:
    """Of one parcel."""

    joint: dict[bytes, JointPromise] = field(default_factory=dict)  # by token
    places: dict[tuple[bytes, int, int], Vows] = field(default_factory=dict)  # by token, partition and offset
    refused: dict[tuple[str, int | None], dict[bytes, NotStored]] = field(default_factory=dict)
    again: bool = False


class PublishTally:
    """The outcomes of one request."""

    def __init__(
        self, parcels: Sequence[Parcel | None], edge: VirtualNode, check_joint: Callable[[JointPromise], bool]
    ) -> None:
        """None is what can only be refused. `check_joint` tells whether a promise counts alone, and raises `Refused`
        where it is worth nothing."""
        self._parcels, self._faults, self._check_joint = parcels, edge.faults, check_joint
        self._keys = {relay.identifier: relay.key for relay in edge.relays}
        self._heard = [_Heard() for _ in parcels]

    def take(self, relay: bytes, answer: Sequence[Outcome] | TallystickError) -> list[Outcome] | None:
        """A relay's answer. Returns the outcomes when all count."""
        if isinstance(answer, TallystickError):
            return None
        for parcel, heard, outcome in zip(self._parcels, self._heard, answer, strict=False):
            try:
                self._hear(relay, parcel, heard, outcome)
            except Refused as error:
                log.warning("relay %s answers what does not hold: %s", relay.hex(), error)
        return self.outcomes(whole=True) or None

    def outcomes(self, *, whole: bool = False) -> list[Outcome]:
        """What counts so far; with `whole` nothing where more may come."""
        found: list[Outcome] = []
        for parcel, heard in zip(self._parcels, self._heard, strict=True):
            outcome = self._counts(parcel, heard)
            if outcome is None:
                return [] if whole else found
            found.append(outcome)
        return found

    def _hear(self, relay: bytes, parcel: Parcel | None, heard: _Heard, outcome: Outcome) -> None:
        if isinstance(outcome, NotStored):
            heard.refused.setdefault((outcome.reason, outcome.expected), {})[relay] = outcome
            return
        if parcel is None:
            raise Forged("a promise for what is no parcel", reason="bad-promise")
        header, hashed = parcel.header, parcel.hash
        if [promise.token for promise in outcome.promises] != [topic.token for topic in header.topics]:
            raise Forged("promises that are not for the parcel's topics", reason="bad-promise")
        heard.again |= outcome.again
        for promise in outcome.promises:
            if (promise.instance, promise.parcel) != (header.instance, hashed):
                raise Forged("a promise for another parcel", reason="bad-promise")
            if isinstance(promise, JointPromise):
                if promise.token in heard.joint:
                    continue
                if self._check_joint(promise):
                    heard.joint[promise.token] = promise
            elif promise.node == relay:
                promise.verify(VerifyKey(self._keys[relay]))
            else:
                raise Forged("a promise of another's", reason="bad-promise")
            place = promise.token, promise.partition, promise.offset
            heard.places.setdefault(place, {})[relay] = promise

    def _counts(self, parcel: Parcel | None, heard: _Heard) -> Outcome | None:
        promises = [] if parcel is None else [self._promise(topic.token, heard) for topic in parcel.header.topics]
        given = tuple(promise for promise in promises if promise is not None)
        if given and len(given) == len(promises):
            return Stored(given, heard.again)
        alike = [relays for relays in heard.refused.values() if self._are_enough(len(relays))]
        return next(iter(alike[0].values())) if alike else None

    def _promise(self, token: bytes, heard: _Heard) -> Promise | JointPromise | None:
        if token in heard.joint:
            return heard.joint[token]
        vows = [vows for place, vows in heard.places.items() if place[0] == token and self._are_enough(len(vows))]
        return next(iter(vows[0].values())) if vows else None

    def _are_enough(self, relays: int) -> bool:
        return relays > self._faults
