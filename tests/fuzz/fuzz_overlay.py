"""What comes over an overlay's links, before anything is verified: frames, and what is inside them.

What decodes is encoded again, to the same bytes: so nothing that is signed, hashed or compared has two forms.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from targets import load_atheris, run

with load_atheris().instrument_imports(include=["tallystick"]):
    from tallystick import wire
    from tallystick.carriers.overlay.carried import ContentMessage
    from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
    from tallystick.carriers.overlay.relayed_keys import SharesMessage
    from tallystick.crypto.coding import CodedBlock
    from tallystick.crypto.signatures import SignedObject
    from tallystick.errors import Misuse, Unavailable
    from tallystick.parcel.parcel import Parcel
    from tallystick.trust.plan import Plan
    from tallystick.trust.promise import JointPromise
    from tallystick.trust.shares import Complaint, Origin, ShareList, ShareSet

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "overlay_messages.json").read_text())


def same(decode: Callable[[bytes], Any]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        one = decode(data)
        assert one.encode() == data, "another encoding of the same"
        if isinstance(one, SignedObject):  # which keeps the body that was signed
            assert wire.encode([1, *wire.listed(one)]) == one.body, "another body with the same fields"

    return refusing(check)


def within(kind: FrameKind, message: type[SharesMessage] | type[ContentMessage]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        frame = OverlayFrame(kind, 1, data)
        assert message.decode(frame).frame(1) == frame.encode(), "another encoding of the same"

    return refusing(check)


def refusing(decode: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """Roles drop what is `Refused`; any other error, one of our own too, would end them."""

    def check(data: bytes) -> None:
        try:
            decode(data)
        except (Misuse, Unavailable) as error:
            raise AssertionError("a role would end") from error

    return check


def examples() -> list[bytes]:
    frames = {name: bytes.fromhex(one["bytes"]) for name, one in VECTORS["frames"]["good"].items()}
    shares, content = (OverlayFrame.decode(frames[name]) for name in ("shares: all", "content: whole"))
    origin, _, dealt, listed = SharesMessage.decode(shares)
    return [
        frames["take over"],
        shares.content,
        content.content,
        origin,
        bytes.fromhex(VECTORS["promises"]["good"][0]["bytes"]),
        dealt or b"",
        listed or b"",
        SharesMessage.decode(OverlayFrame.decode(frames["shares: a complaint"])).complaint or b"",
        bytes.fromhex(VECTORS["plan"]),
        ContentMessage.decode(content).front,
    ]


if __name__ == "__main__":
    run(
        [
            same(OverlayFrame.decode),
            within(FrameKind.SHARES, SharesMessage),
            within(FrameKind.CONTENT, ContentMessage),
            same(Origin.decode),
            same(JointPromise.decode),
            same(ShareSet.decode),
            same(ShareList.decode),
            same(Complaint.decode),
            same(Plan.decode),
            refusing(Parcel.decode_front),
            refusing(CodedBlock.decode),
        ],
        examples(),
    )
