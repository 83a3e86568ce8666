"""The frames that a switch tells apart: EtherType 0x9003 goes to the controller, 0x9004 by its route header.

Threat: an address in the Ethernet header would name the publisher to every switch and every subscriber. Invariant: all
frames of the fabric carry the same two addresses, a made-up sender and a made-up group, so that the label is the only
thing in front of the payload that differs. What follows the header says its own length (docs/formats/fabric.md): a real
network pads short frames. Each header names its route epoch, 16 bits: a number is used again only when no table holds
it. EtherType 0x9003 is also 3Com's loop detection: do not run both on one wire.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tallystick.errors import Malformed, Refused

ETHERTYPE_CONTROL = 0x9003
ETHERTYPE_PUBLICATION = 0x9004
ROUTE_VERSION = 1
LABEL_BYTES = 16
EPOCH_MAX = 0xFFFF

DESTINATION = bytes.fromhex("030000009004")  # locally administered, a group
SOURCE = bytes.fromhex("020000009004")  # locally administered
ETHERNET_BYTES = 14
ROUTE_BYTES = 20
HEADER_BYTES = ETHERNET_BYTES + ROUTE_BYTES  # of a publication, before its payload

_ADDRESSES = DESTINATION + SOURCE
_CONTROL = _ADDRESSES + struct.pack("!H", ETHERTYPE_CONTROL)
_PUBLICATION = _ADDRESSES + struct.pack("!H", ETHERTYPE_PUBLICATION)
_ROUTE = struct.Struct("!BBH16s")


@dataclass(frozen=True, slots=True)
class RouteHeader:
    epoch: int
    label: bytes
    flags: int = 0  # left alone by switches

    def encode(self) -> bytes:
        return _ROUTE.pack(ROUTE_VERSION, self.flags, self.epoch, self.label)

    @classmethod
    def decode(cls, data: bytes) -> RouteHeader:
        """Read it from the first bytes. Raises `Malformed`."""
        if len(data) < ROUTE_BYTES:
            raise Malformed(f"route header: {ROUTE_BYTES} bytes expected, found {len(data)}")
        version, flags, epoch, label = _ROUTE.unpack_from(data)
        if version != ROUTE_VERSION:
            raise Malformed(f"route header: version {ROUTE_VERSION} expected, found {version}")
        return cls(epoch, label, flags)


def publication(route: RouteHeader, payload: bytes) -> bytes:
    """The frame that carries this payload along this route."""
    return _PUBLICATION + route.encode() + payload


def control(payload: bytes) -> bytes:
    """The frame that any switch hands to its controller."""
    return _CONTROL + payload


def ethertype(frame: bytes) -> int:
    """0 for a frame too short to have one."""
    return int.from_bytes(frame[12:14]) if len(frame) >= ETHERNET_BYTES else 0


def read_publication(frame: bytes) -> tuple[RouteHeader, bytes]:
    """Raises `Malformed`."""
    if ethertype(frame) != ETHERTYPE_PUBLICATION:
        raise Malformed("publication: another kind of frame")
    return RouteHeader.decode(frame[ETHERNET_BYTES:HEADER_BYTES]), frame[HEADER_BYTES:]


def read_control(frame: bytes) -> bytes:
    """The payload of a control frame. Raises `Malformed`."""
    if ethertype(frame) != ETHERTYPE_CONTROL:
        raise Malformed("control frame: another kind of frame")
    return frame[ETHERNET_BYTES:]


def next_epoch(current: int, in_use: set[int]) -> int:
    """The next number that no table holds. Raises `Refused` if there is none."""
    for step in range(1, EPOCH_MAX + 1):
        epoch = (current + step) & EPOCH_MAX
        if epoch not in in_use:
            return epoch
    raise Refused("route epoch: all are in use", reason="epoch-live")


def live_epochs(found: set[int]) -> list[int]:
    """Of the epochs in the tables, the one that none follows, and the one before it where it has not ended."""
    newest = next((one for one in sorted(found) if (one + 1) & EPOCH_MAX not in found), 1)
    before = (newest - 1) & EPOCH_MAX
    return [before, newest] if before in found else [newest]
