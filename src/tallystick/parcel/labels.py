"""Labels: keyed pseudonyms of subspaces, by which a node tells what a subscriber need not be sent.

    label         version of the code (1 byte) ‖ number of the code (1) ‖ HKDF(label key, …)[:8]
    in a header   the labels of all strings that cover one of its rows, sorted, padded to the code's number
    in a permit   topic epoch (4 bytes) ‖ label, for all strings that cover the interest, sorted, padded;
                  topic epoch ‖ version alone, where that code tells nothing about the interest

Threat: a node that learns interests, or what parcels hold. It sees labels, and no key: strings of bits under HKDF with
a key per topic and epoch, so that labels mean nothing in another topic or epoch. It compares them, and must: equal
labels mean equal subspaces within an epoch, and how often each occurs is seen (docs/guides/interests.md says what can
be made of that). A publisher has the key; one that tells the node opens all labels of its topic and epoch. Labels are
no access right: what a subscriber may open is a matter of locks.

Threat: a node that keeps back a parcel by calling it unwanted. The rule (`Wanted`) is a function of the permit and of
the signed header, both of which the subscriber has: it holds the node to it.

A topic whose entry says so (flag 4, clear) has labels without a key: the string itself, so that a relay sees
which subspace holds which, and may leave out what another covers.

    clear label   version of the code (1 byte) ‖ number of the code (1) ‖ length in bits (1) ‖ bits, then 0 (7 bytes)

Invariant: never a false negative of an honest publisher's parcel. The rule says "not wanted" only where the permit has
labels for exactly the header's epoch and version of the code; whatever it cannot compare (no labels, an epoch or a
version that the permit was not made for, a lane of several topics) is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tallystick.crypto.symmetric import derive
from tallystick.parcel.header import Header
from tallystick.policy.formula import Formula
from tallystick.policy.topic_code import Subspace, TopicCode

LABEL_BYTES = 8  # of the pseudonym: two subspaces of one topic and epoch meet once in 2**64
_EPOCH_BYTES = 4
_KNOWN_MAX = 65_536  # labels that are remembered, some 10 MB

Draw = Callable[[int], bytes]


class Labeller:
    """A publisher's labels of one topic, epoch and code; shows nothing of its key. Without a key they are clear."""

    def __init__(self, code: TopicCode, key: bytes | None) -> None:
        self._code, self._key = code, key
        self._known: dict[Subspace, bytes] = {}

    def labels(self, columns: Mapping[str, Any], draw: Draw) -> tuple[bytes, ...]:
        """The labels of a parcel with these columns, none where it holds too many subspaces. `draw` brings entropy."""
        subspaces = self._code.describe(columns)
        if not subspaces:
            return ()
        found = {self.label(*one) for one in subspaces}
        numbers = sorted({number for number, _ in subspaces})
        while self._key is not None and len(found) < self._code.number:
            found.add(_mark(self._code, numbers[len(found) % len(numbers)]) + draw(LABEL_BYTES))
        return tuple(sorted(found))

    def label(self, number: int, string: str) -> bytes:
        known = self._known.get((number, string))
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            if self._key is None:
                name = _clear(string)
            else:
                name = derive(self._key, "tallystick label 1", self._code.version, number, string.encode())
            known = self._known[number, string] = _mark(self._code, number) + name[:LABEL_BYTES]
        return known

    def __repr__(self) -> str:
        return "Labeller(…)"


def interest_labels(
    code: TopicCode,
    keys: Mapping[int, bytes | None],
    interest: Formula,
    *,
    strings_max: int,
    false_positives_max: float,
    draw: Draw,
) -> tuple[bytes, ...]:
    """What a permit carries for an interest: its labels in every epoch of `keys`, at most `strings_max` in each; a mark
    where the code can tell nothing about it, so that its holder does not ask again. Without a key they are clear."""
    covers = code.covers(interest, strings_max, false_positives_max)
    if not covers:
        return tuple(epoch.to_bytes(_EPOCH_BYTES, "big") + bytes([code.version]) for epoch in sorted(keys))
    found: set[bytes] = set()
    for epoch, key in keys.items():
        labeller = Labeller(code, key)
        for number, strings in covers.items():
            labels = {labeller.label(number, string) for string in strings}
            while key is not None and len(labels) < strings_max // len(covers):
                labels.add(_mark(code, number) + draw(LABEL_BYTES))
            found |= {epoch.to_bytes(_EPOCH_BYTES, "big") + label for label in labels}
    return tuple(sorted(found))


class Wanted:
    """Which parcels a permit with these labels asks for whole. Node and subscriber go by the same rule."""

    def __init__(self, labels: Iterable[bytes]) -> None:
        # (epoch, version) → number of the code → labels
        self._labels: dict[tuple[int, int], dict[int, set[bytes]]] = {}
        for label in labels:
            if len(label) <= _EPOCH_BYTES:
                continue
            by_code = self._labels.setdefault((int.from_bytes(label[:_EPOCH_BYTES], "big"), label[_EPOCH_BYTES]), {})
            if len(label) > _EPOCH_BYTES + 1:
                by_code.setdefault(label[_EPOCH_BYTES + 1], set()).add(label[_EPOCH_BYTES:])

    def __bool__(self) -> bool:
        """Whether anything can come as a front."""
        return any(self._labels.values())

    def asks_for(self, header: Header) -> bool:
        """Whether the parcel is wanted whole."""
        place = header.label_place
        by_code = self._labels.get(place, {}) if place else {}
        return all(not labels.isdisjoint(header.labels) for labels in by_code.values())

    def covers(self, other: Wanted, clear: bool = False) -> bool:
        """Whether this asks for every parcel that `other` asks for. Where labels are `clear`, a string covers those
        that begin with it; keyed ones show no such thing, and are covered by themselves alone."""
        for place, by_code in self._labels.items():
            others = other._labels.get(place, {})
            for number, labels in by_code.items():
                narrower = others.get(number)
                if narrower is None or not (narrower <= labels or (clear and _begin(labels, narrower))):
                    return False
        return True

    @property
    def newest(self) -> tuple[int, int]:
        """The last epoch, and version of the code in it, that the labels were made for."""
        return max(self._labels, default=(0, 0))


def _mark(code: TopicCode, number: int) -> bytes:
    return bytes([code.version, number])


def _clear(string: str) -> bytes:
    """A string of at most 24 bits that anybody can read."""
    return bytes([len(string)]) + int(string.ljust(8 * (LABEL_BYTES - 1), "0"), 2).to_bytes(LABEL_BYTES - 1, "big")


def _begin(shorter: set[bytes], longer: set[bytes]) -> bool:
    """Whether each of the longer labels begins with one of the shorter ones; what is not clear begins with none."""
    strings = {string for label in shorter if (string := _string(label))}
    return all(
        any(string[:end] in strings for end in range(1, len(string) + 1)) for string in (_string(one) for one in longer)
    )


def _string(label: bytes) -> str:
    """The string of a clear label, or nothing where it is none."""
    if len(label) != 2 + LABEL_BYTES:
        return ""
    length, bits = label[2], format(int.from_bytes(label[3:], "big"), f"0{8 * (LABEL_BYTES - 1)}b")
    return bits[:length] if length <= len(bits) and "1" not in bits[length:] else ""
