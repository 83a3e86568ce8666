"""One parcel on its way: what is said of it in a message, and how much of it is at a relay.

A body travels in parts (`content.py`): coded blocks, or copies of the whole where it is not coded. Every part is
checked against the header, and the header against the joint promise, before it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.overlay.content import Parts, carrier
from tallystick.carriers.overlay.frames import FRAME_BYTES_MAX, FrameKind, OverlayFrame
from tallystick.crypto.coding import Assembly, CodedBlock, encode
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged
from tallystick.parcel.parcel import Parcel
from tallystick.trust.plan import RELAYS_MAX, Plan, VirtualNode
from tallystick.trust.promise import JointPromise


class ContentMessage(NamedTuple):
    """A promise and what stands before the body; then a coded block, or the body, or nothing: that it is there."""

    promise: bytes
    front: bytes
    block: bytes | None = None
    body: bytes | None = None

    def frame(self, plan: int) -> bytes:
        return OverlayFrame(FrameKind.CONTENT, plan, wire.encode([1, *self])).encode()

    @classmethod
    def decode(cls, frame: OverlayFrame) -> ContentMessage:
        """Raises `Malformed`."""
        fields = frame.fields("content", 5)
        front = fields.octets(), fields.octets(at_most=FRAME_BYTES_MAX)
        return cls(*front, *(fields.optional_octets(FRAME_BYTES_MAX) for _ in range(2)))


def name_carried(promise: JointPromise) -> bytes:
    """What questions and acknowledgements call a parcel at its place."""
    return named_hash("tallystick carried parcel 1", promise.body)


class RelayedParcel:
    """A promised parcel at one relay, and the parts of it that are here."""

    def __init__(
        self, promise: JointPromise, front: Parcel, plan: Plan, path: tuple[VirtualNode, ...], index: int, one_way: bool
    ) -> None:
        """`path` leads from the publisher's edge to this relay's virtual node, where it has this index, from 0. Of a
        body that is not coded every relay carries a copy, or with `one_way` one of each virtual node. Raises
        `Malformed`."""
        self.promise, self.plan, self.path, self.index = promise, plan, path, index
        self._front, self._blocks = front, dict[int, bytes]()
        self._body: bytes | None = None
        self._assembly: Assembly | None = None
        header = front.header
        if header.coding is not None:
            self.split = Parts(header.coding.needed, header.coding.total)
            self._assembly = Assembly(header.coding, header.body_bytes, header.body_root)
        else:
            self.split = Parts(1, 1 if one_way else RELAYS_MAX)  # the same everywhere, whatever the sizes on the way
        size = len(path[-1].relays)
        own = {part for part in range(self.split.total) if carrier(part, self.depth, size) == index}
        self.wanted = own  # and those that it is asked for
        self._encoded = promise.encode(), front.encode_front()
        self.is_released = False

    @property
    def depth(self) -> int:
        return len(self.path) - 1

    @property
    def came_from(self) -> bytes | None:
        """The virtual node before this one, if there is any."""
        return self.path[-2].identifier if self.depth else None

    @cached_property
    def before(self) -> list[bytes]:
        """The relays that it comes from."""
        return [*self.path[-2].names] if self.depth else []

    @property
    def held(self) -> set[int]:
        return set(range(self.split.total)) if self._body is not None else set(self._blocks)

    @property
    def is_satisfied(self) -> bool:
        return self.is_released or self.wanted <= self.held

    @property
    def size(self) -> int:
        """In bytes, of what is kept."""
        return len(self._body or b"") + sum(map(len, self._blocks.values()))

    def take(self, message: ContentMessage) -> bool:
        """Keep a part, and say whether it was new. Raises `Malformed` and `Forged`."""
        if self._body is not None or self.is_released:
            return False
        if message.body is not None and self._assembly is None:
            self.take_body(message.body)
            return True
        coding = self._front.header.coding
        if message.block is None or coding is None or self._assembly is None:
            return False
        block = CodedBlock.decode(message.block)
        if block.index in self._blocks:
            return False
        block.verify(coding)
        self._assembly.add(block)
        self._blocks[block.index] = message.block
        return True

    def take_body(self, body: bytes) -> None:
        """Raises `Forged`."""
        self._with(body).check_body()
        self._body = body

    def rebuild(self) -> None:
        """Make the body of the blocks that are here, if they are enough. Raises `Forged` where the publisher lied."""
        if self._body is None and self._assembly is not None and self._assembly.enough:
            self._body = self._assembly.body()
            self._blocks.clear()

    def whole(self) -> Parcel | None:
        """The parcel, once its body is here."""
        return None if self._body is None else self._with(self._body)

    @property
    def front(self) -> Parcel:
        """The parcel without its body."""
        return self._front

    def _with(self, body: bytes) -> Parcel:
        return Parcel(self._front.header, self._front.signature, body, self._front.marks)

    def bare(self) -> ContentMessage:
        return ContentMessage(*self._encoded)

    def messages(self, parts: Iterable[int]) -> list[ContentMessage]:
        """With these parts, which are here. Raises `Forged` where the publisher's blocks are not its body's."""
        chosen = list(parts)
        if not chosen:
            return []
        if self._assembly is None:
            return [self.bare()._replace(body=self._body)]
        if self._body is not None and not self._blocks:
            coded = encode(self._body, self.split.needed, self.split.total)
            if coded.coding != self._front.header.coding:
                raise Forged("coded body: the signed blocks are not those of the signed body")
            self._blocks = {part: coded.block(self.promise.parcel, part).encoded for part in range(self.split.total)}
        return [self.bare()._replace(block=self._blocks[part]) for part in chosen]

    def release(self) -> None:
        """Let go of the body: everybody has it. That it was here is remembered."""
        self._body, self._assembly, self.is_released = None, None, True
        self._blocks.clear()
