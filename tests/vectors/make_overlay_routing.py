"""Writes overlay_routing.json beside itself: `python tests/vectors/make_overlay_routing.py`.

Everything is a function of the seeds below: one authority, a publisher and a subscriber, their claims at an edge and
what takes them back, the frames that carry them, notices, and bytes that must be refused, each with the reason.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallystick import wire
from tallystick.carriers.overlay.claims import sign_claim
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.notices import Notice, NoticeKind, RoutingState
from tallystick.crypto.signatures import SigningKey
from tallystick.guards.route import MessageKind
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.permit import Operation, Permit, UndoOrder, undo_hash

PATH = Path(__file__).parent / "overlay_routing.json"
INSTANCE, TENANT, TOKEN, EDGE = b"\x01" * 32, b"\x02" * 16, b"\x03" * 16, b"\x04" * 16
AUTHORITY_SEED, HOLDER_SEED = b"\x05" * 32, b"\x06" * 32
AUTHORITY, HOLDER = SigningKey.from_seed(AUTHORITY_SEED), SigningKey.from_seed(HOLDER_SEED)
PLAN, CREATED_MS = 5, 1_700_000_000_000
LABEL = bytes.fromhex("0000000701000360000000000000")  # epoch 7, version 1, code 0, the clear string 011


def certificate() -> Certificate:
    raw = AUTHORITY.public.raw
    values = (INSTANCE, SubjectKind.AUTHORITY, subject_id(INSTANCE, raw), ALL_TENANTS, raw, b"", 0, 1 << 50, ROOT_ID)
    return Certificate(*values).sign(AUTHORITY)


def permit(operation: Operation) -> Permit:
    return Permit(
        instance=INSTANCE,
        identifier=bytes([0x10 + operation]) * 16,
        operation=operation,
        token=TOKEN,
        tenant=TENANT,
        principal=subject_id(INSTANCE, HOLDER.public.raw),
        signing_key=HOLDER.public.raw,
        first_epoch=1,
        last_epoch=9,
        not_before_ms=0,
        not_after_ms=1 << 50,
        authority=certificate().subject,
        undo_hash=undo_hash(b"\x07" * 32),
        labels=(LABEL,) if operation is Operation.SUBSCRIBE else (),
    ).sign(AUTHORITY)


def order(of: Permit) -> UndoOrder:
    values = (of.instance, of.identifier, of.operation, of.token, of.tenant, of.principal)
    return UndoOrder(*values, CREATED_MS, of.authority).sign(AUTHORITY)


def claim(kind: MessageKind, undo: UndoOrder | None = None, **changes: Any) -> bytes:
    operation = Operation.SUBSCRIBE if kind in (1, 4) else Operation.ADVERTISE
    given: dict[str, Any] = {"permit": permit(operation), "key": HOLDER, "created_ms": CREATED_MS, **changes}
    identifier = bytes([0x20 + kind]) * 16
    return sign_claim(kind, EDGE, given["permit"], given["key"], identifier, given["created_ms"], undo)


def main() -> None:
    subscribe, advertise = permit(Operation.SUBSCRIBE), permit(Operation.ADVERTISE)
    claims = {
        "subscribe": claim(MessageKind.SUBSCRIBE),
        "advertise": claim(MessageKind.ADVERTISE),
        "unsubscribe": claim(MessageKind.UNSUBSCRIBE, order(subscribe)),
        "unadvertise": claim(MessageKind.UNADVERTISE, order(advertise)),
    }
    notices = {kind.name.lower(): Notice(kind, b"\x08" * 16, PLAN + 1).encode() for kind in NoticeKind}
    state = RoutingState(True, (claims["subscribe"], claims["advertise"])).encode()
    vectors = {
        "instance": INSTANCE.hex(),
        "authority_seed": AUTHORITY_SEED.hex(),
        "holder_seed": HOLDER_SEED.hex(),
        "authority": certificate().encode().hex(),
        "edge": EDGE.hex(),
        "created_ms": CREATED_MS,
        "plan": PLAN,
        "permits": {"subscribe": subscribe.encode().hex(), "advertise": advertise.encode().hex()},
        "claims": {name: data.hex() for name, data in claims.items()},
        "notices": {name: data.hex() for name, data in notices.items()},
        "state": state.hex(),
        "state_empty": RoutingState(False, ()).encode().hex(),
        "frames": {
            "route": OverlayFrame(FrameKind.ROUTE, PLAN, claims["subscribe"]).encode().hex(),
            "notice": OverlayFrame(FrameKind.NOTICE, PLAN, notices["detach"]).encode().hex(),
            "state": OverlayFrame(FrameKind.STATE, PLAN, state).encode().hex(),
        },
        "bad_claims": {name: [why, data.hex()] for name, (why, data) in bad_claims(subscribe, advertise).items()},
        "bad_notices": {
            "of version 2": wire.encode([2, 1, bytes(16), 5]).hex(),
            "of no kind": wire.encode([1, 0, bytes(16), 5]).hex(),
            "of kind 5": wire.encode([1, 5, bytes(16), 5]).hex(),
            "with a subject of 15 bytes": wire.encode([1, 1, bytes(15), 5]).hex(),
            "with a plan below zero": wire.encode([1, 1, bytes(16), -1]).hex(),
            "with a field more": wire.encode([1, 1, bytes(16), 5, 0]).hex(),
        },
        "bad_states": {
            "of version 2": wire.encode([2, 1, []]).hex(),
            "neither last nor not": wire.encode([1, 2, []]).hex(),
            "true in place of 1": wire.encode([1, True, []]).hex(),
            "257 claims": wire.encode([1, 1, [b""] * 257]).hex(),
            "a claim of text": wire.encode([1, 1, ["claim"]]).hex(),
        },
    }
    PATH.write_text(json.dumps(vectors, indent=1) + "\n")


def bad_claims(subscribe: Permit, advertise: Permit) -> dict[str, tuple[str, bytes]]:
    kind, other = MessageKind.SUBSCRIBE, SigningKey.from_seed(b"\x09" * 32)
    raw = replace(subscribe, signing_key=other.public.raw)
    return {
        "not signed by its holder": ("bad-signature", claim(kind, key=other)),
        "a permit that no authority signed": ("forged", claim(kind, permit=raw.sign(other), key=other)),
        "a permit for the other operation": ("wrong-permit", claim(kind, permit=advertise)),
        "an order of another permit": ("wrong-permit", claim(MessageKind.UNSUBSCRIBE, order(advertise))),
        "an order where none belongs": ("malformed", claim(kind, order(subscribe))),
        "no order where one belongs": ("malformed", claim(MessageKind.UNSUBSCRIBE)),
        "an order that no authority signed": (
            "forged",
            claim(MessageKind.UNSUBSCRIBE, replace(order(subscribe), time_ms=1).sign(HOLDER)),
        ),
        "a publication": ("malformed", claim(MessageKind.PUBLISH, permit=subscribe)),
        "too old": ("stale", claim(kind, created_ms=CREATED_MS - 66_000)),
        "too new": ("future", claim(kind, created_ms=CREATED_MS + 6_000)),
    }


if __name__ == "__main__":
    main()
