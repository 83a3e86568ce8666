"""Verification: bytes that claim to be parcels become `VerifiedParcel`s, or an error that says what was done to them.

The checks, in order, for a run of parcels of one lane:

 1. each belongs to this instance and names the topic it was fetched under;
 2. each follows the one before: sequence + 1, previous hash equal (EventGuard has no such chain; without it a broker
    drops or reorders unseen);
 3. the last header of the run is signed by the key in its advertise permit; by the chain of hashes that one
    signature vouches for the whole run, as long as permit and key stay the same;
 4. the permits cover operation, token and epoch, and were signed by their authority (checked once, when the permit
    enters the `PermitBook`);
 5. each body hashes to the root in its header (`verify_headers` stops before this one).

What it leaves to its callers: whether the run meets the lane's head and the anchor (client/subscribe.py and the Spark
reader know those), and revocation, which is a matter of heights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby

from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Malformed, Withheld
from tallystick.parcel.header import NO_PREVIOUS, SIGNATURE_CONTEXT, Header
from tallystick.parcel.parcel import _KEY, Parcel, VerifiedHeader, VerifiedParcel, describe, is_front
from tallystick.trust.certificate import Certificate
from tallystick.trust.permit import Operation, Permit


class PermitBook:
    """Permits that were checked against their authority's certificate, by identifier.

    `fetch` brings a permit's bytes, from wherever; they are not trusted.
    """

    def __init__(
        self, instance: bytes, authorities: Iterable[Certificate], fetch: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._instance = instance
        self._authorities = {certificate.subject: certificate for certificate in authorities}
        self._permits: dict[bytes, Permit] = {}
        self._fetch = fetch

    def add(self, data: bytes) -> Permit:
        """Check a permit and keep it."""
        permit = Permit.decode(data)
        if permit.instance != self._instance:
            raise Forged("permit: of another instance", reason="wrong-instance")
        authority = self._authorities.get(permit.authority)
        if authority is None:
            raise Forged("permit: its authority is not known here", reason="unknown-authority")
        permit.verify(authority)
        self._permits[permit.identifier] = permit
        return permit

    def __contains__(self, identifier: bytes) -> bool:
        return identifier in self._permits

    def get(self, identifier: bytes) -> Permit:
        permit = self._permits.get(identifier)
        if permit is None:
            if self._fetch is None:
                raise Forged(f"permit {identifier.hex()[:8]} is not known here", reason="unknown-permit")
            permit = self.add(self._fetch(identifier))
            if permit.identifier != identifier:
                raise Forged("permit: another one was sent than was asked for", reason="unknown-permit")
        return permit

    def authority(self, permit: Permit) -> Certificate:
        return self._authorities[permit.authority]


def check_instance(header: Header, instance: bytes) -> None:
    if header.instance != instance:
        raise Forged(f"{describe(header)}: of another instance", reason="wrong-instance")


def check_permits(header: Header, book: PermitBook) -> tuple[Permit, ...]:
    """The advertise permits of all the header's topics; they must belong to one principal and one key."""
    permits = []
    for topic in header.topics:
        permit = book.get(topic.permit)
        permit.check_covers(Operation.ADVERTISE, topic.token, topic.epoch)
        permits.append(permit)
    if len({(permit.principal, permit.signing_key) for permit in permits}) != 1:
        raise Forged(f"{describe(header)}: its permits belong to different publishers", reason="wrong-permit")
    return tuple(permits)


def check_signature(parcel: Parcel, key: VerifyKey) -> None:
    try:
        key.verify(SIGNATURE_CONTEXT, parcel.signature, parcel.header.encoded)
    except Forged as error:
        raise Forged(f"{describe(parcel.header)}: signature does not verify", reason="bad-signature") from error


def verify_one(parcel: Parcel, instance: bytes, book: PermitBook) -> VerifiedParcel:
    """Verify a parcel by its own signature, as guards do; where it stands in its lane is not looked at."""
    check_instance(parcel.header, instance)
    permits = check_permits(parcel.header, book)
    check_signature(parcel, permits[0].verify_key)
    parcel.check_body()
    return VerifiedParcel(parcel, permits, _KEY)


def verify_own(parcel: Parcel, keys: Sequence[VerifyKey]) -> VerifiedParcel:
    """Verify a parcel that we sealed ourselves, by one of our own keys: its permit may be of an earlier time."""
    *earlier, last = keys
    for key in earlier:
        with suppress(Forged):
            check_signature(parcel, key)
            break
    else:
        check_signature(parcel, last)
    parcel.check_body()
    return VerifiedParcel(parcel, (), _KEY)


def verify_run(
    parcels: Sequence[Parcel], instance: bytes, token: bytes, book: PermitBook, head: tuple[int, bytes] | None
) -> list[VerifiedParcel]:
    """Verify the contiguous run of one lane that follows `head` (sequence and hash of the last parcel seen; None
    at the lane's beginning). Raises `Withheld` or `Forged`, naming the first parcel that does not fit.
    """
    return [_with_body(one) for one in verify_headers(parcels, instance, token, book, head)]


def verify_received(
    parcels: Sequence[Parcel], instance: bytes, token: bytes, book: PermitBook, head: tuple[int, bytes] | None
) -> list[VerifiedHeader]:
    """`verify_run` where some parcels came as fronts: those stay headers."""
    verified = verify_headers(parcels, instance, token, book, head)
    return [one if is_front(one.parcel) else _with_body(one) for one in verified]


def _with_body(verified: VerifiedHeader) -> VerifiedParcel:
    verified.parcel.check_body()
    return VerifiedParcel(verified.parcel, verified.permits, _KEY)


def verify_headers(
    parcels: Sequence[Parcel], instance: bytes, token: bytes, book: PermitBook, head: tuple[int, bytes] | None
) -> list[VerifiedHeader]:
    """`verify_run` without its last check, for who has fronts only and leaves the bodies to others."""
    sequence, previous = (-1, NO_PREVIOUS) if head is None else head
    for parcel in parcels:
        if parcel.header.lane != parcels[0].header.lane:
            raise Malformed(f"{describe(parcel.header)}: in a run of another lane", reason="wrong-lane")
        check_instance(parcel.header, instance)
        parcel.header.topic(token)
        check_follows(parcel.header, sequence, previous)
        sequence, previous = parcel.header.sequence, parcel.hash
    verified = []
    # One signature vouches backwards for as long as the same publisher's key is at work.
    for _, part in groupby(parcels, key=lambda parcel: [topic.permit for topic in parcel.header.topics]):
        run = list(part)
        for last in run[:-1]:
            _check_epochs(last.header, book)
        permits = check_permits(run[-1].header, book)
        check_signature(run[-1], permits[0].verify_key)
        verified += [VerifiedHeader(parcel, permits, _KEY) for parcel in run]
    return verified


def verify_named(parcel: Parcel, name: bytes, permits: tuple[Permit, ...] = ()) -> VerifiedParcel:
    """Verify a parcel by the name under which its header was verified already, by somebody whom the caller trusts as
    itself: a Spark driver does it for its executors. The body is checked here; the permits are on record with it."""
    if parcel.hash != name:
        raise Withheld(f"{describe(parcel.header)}: another parcel was expected here", reason="altered")
    parcel.check_body()
    return VerifiedParcel(parcel, permits, _KEY)


def check_follows(header: Header, sequence: int, previous: bytes) -> None:
    """Raise `Withheld` unless `header` is the parcel after (sequence, previous) of its lane."""
    expected = sequence + 1
    if header.sequence > expected:
        raise Withheld(f"{describe(header)}: parcel {expected} is missing before it", reason="missing")
    if header.sequence < expected:
        raise Withheld(f"{describe(header)}: repeated, parcel {expected} was due", reason="repeated")
    if header.previous != previous:
        raise Withheld(f"{describe(header)}: does not follow the parcel before it", reason="broken-chain")


def _check_epochs(header: Header, book: PermitBook) -> None:
    """The permits of a parcel inside a run are those of its last one; only the epochs may differ."""
    for topic in header.topics:
        book.get(topic.permit).check_covers(Operation.ADVERTISE, topic.token, topic.epoch)


def check_partition(header: Header, partition: int, partitions: int) -> None:
    """Raise `Malformed` unless the lane belongs into this partition."""
    if header.partition(partitions) != partition:
        raise Malformed(
            f"{describe(header)}: belongs into partition {header.partition(partitions)}, found in {partition}",
            reason="wrong-partition",
        )
