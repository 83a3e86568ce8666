"""The key ring of a reader: the private halves it was given, and the lane keys it opened with them.

A lane key is worth keeping: opening a lock costs an HPKE decapsulation, and a lane uses one lock for thousands of
parcels. The cache is bounded; what falls out is opened again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tallystick.crypto import hpke
from tallystick.parcel.header import Header
from tallystick.parcel.keys import LaneKey
from tallystick.parcel.locks import ErasureLock, Lock, TopicLock, check_lane, decode_lock

LANE_KEYS_MAX = 65_536  # about 20 MiB


class LaneKeys(Protocol):
    """Whoever can tell the lane key of a header's group: a reader's ring, or the publisher itself."""

    def lane_key(self, header: Header, group: int) -> LaneKey: ...


class KeyRing:
    def __init__(self, fetch_lock: Callable[[bytes], bytes], lane_keys_max: int = LANE_KEYS_MAX) -> None:
        """`fetch_lock` brings a lock's bytes by its hash, from wherever; they are held to the hash."""
        self._fetch_lock = fetch_lock
        self._topic_keys: dict[tuple[bytes, int], hpke.PrivateKey] = {}
        self._erasure_keys: dict[tuple[bytes, bytes, int], hpke.PrivateKey] = {}
        self._lane_keys: OrderedDict[tuple[object, ...], LaneKey] = OrderedDict()
        self._lane_keys_max = lane_keys_max

    def add_topic_key(self, token: bytes, epoch: int, key: hpke.PrivateKey) -> None:
        self._topic_keys[token, epoch] = key

    def add_erasure_key(self, token: bytes, publisher: bytes, period: int, key: hpke.PrivateKey) -> None:
        self._erasure_keys[token, publisher, period] = key

    def forget_erasure_key(self, token: bytes, publisher: bytes, period: int) -> None:
        """Drop a destroyed key, and every lane key, since any may have come from it."""
        self._erasure_keys.pop((token, publisher, period), None)
        self._lane_keys.clear()

    def lane_key(self, header: Header, group: int) -> LaneKey:
        """The lane key of a group of the header's lane; `MissingKey` or `CannotOpen` if the ring cannot."""
        names, permits = header.groups[group].locks, tuple(topic.permit for topic in header.topics)
        place = (header.lane, group, names, permits)
        known = self._lane_keys.get(place)
        if known is not None:
            self._lane_keys.move_to_end(place)
            return known
        secrets = []
        for name in names:
            lock = decode_lock(self._fetch_lock(name), name)
            check_lane(lock, header.instance, header.lane)
            secrets.append(self._open(lock))
        key = LaneKey.of(secrets, names, instance=header.instance, lane=header.lane, group=group, permits=permits)
        self._lane_keys[place] = key
        if len(self._lane_keys) > self._lane_keys_max:
            self._lane_keys.popitem(last=False)
        return key

    def _open(self, lock: Lock) -> bytes:
        match lock:
            case TopicLock():
                return lock.open(self._topic_keys)
            case ErasureLock():
                return lock.open(self._erasure_keys)
