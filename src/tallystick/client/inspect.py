"""What a stranger can see of a file, without any key: the kind of thing that it is and its facts. Nothing is verified
and nothing opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tallystick.errors import Malformed, Misuse, Refused

if TYPE_CHECKING:
    from tallystick.trust.promise import Joint

Facts = dict[str, Any]


def look(data: bytes) -> tuple[str, Facts]:
    """The kind of thing, and its facts by name. Raises `Malformed` where it is none that is known."""
    for kind, read in READERS.items():
        try:
            return kind, read(data)
        except (Refused, Misuse, ValueError):
            continue
    raise Malformed("none of the things that tally knows", hint=f"it knows {', '.join(READERS)}")


def fields(thing: object, names: str) -> Facts:
    """These attributes of a thing, by their names."""
    return {name: getattr(thing, name) for name in names.split()}


def _trust(data: bytes) -> Facts:
    from tallystick.trust.notes import ledger_verifiers
    from tallystick.trust.trustfile import TrustFile

    trust = TrustFile.parse(data)
    return {
        "instance": trust.instance.hex(),
        "name": trust.name,
        "number": trust.number,
        "root_keys": f"{trust.threshold} of {len(trust.roots)} must sign",
        "ledger_keys": f"{trust.ledger_threshold} of {len(trust.ledger_keys)} must sign",
        "ledger_key_ids": [one.key_id.hex() for one in ledger_verifiers(trust)],
        "witnesses": list(trust.witnesses),
        "quorum": trust.quorum,
    }


def _invitation(data: bytes) -> Facts:
    from tallystick.identity.invitation import Invitation

    invited = Invitation.decode(data.decode("ascii"))
    return {"instance": invited.instance, "authority": invited.authority_url, "nodes": list(invited.node_urls)}


def _checkpoint(data: bytes) -> Facts:
    from tallystick.trust.notes import Checkpoint, Note
    from tallystick.wire import is_number

    note = Note.decode(data)
    checkpoint = Checkpoint.decode(note.text)
    lines: Facts = dict(line.split(" ", 1) for line in checkpoint.extensions if " " in line)
    if is_number(str(lines.get("time", ""))):
        lines["block_time_ms"] = int(lines.pop("time"))
    return {
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root,
        **lines,
        "signed_by": [one.name for one in note.signatures],
    }


def _header(encoded: bytes) -> Facts:
    from tallystick.parcel.header import Header

    header = Header.decode(encoded)
    return {
        "instance": header.instance,
        "kind": header.kind.name.lower(),
        **fields(header, "lane sequence previous hash"),
        "topics": [fields(one, "token permit epoch") for one in header.topics],
        "schema_version": header.schema_version,
        "rows": None if header.padded else header.count,
        "time_ms": None if header.padded else header.time_ms,
        **fields(header, "padded pending body_bytes"),
        "column_groups": [
            {"root": one.root, "locks": list(one.locks), "bytes": one.section_bytes} for one in header.groups
        ],
        "labels": list(header.labels),
    }


def _parcel(data: bytes) -> Facts:
    from tallystick.parcel.parcel import Parcel

    return _header(Parcel.decode(data).header.encoded)


def _proof(data: bytes) -> Facts:
    from tallystick.parcel.prove import Proof
    from tallystick.record.leaves import decode_row
    from tallystick.record.schema import Schema
    from tallystick.record.show import readable

    proof = Proof.decode(data)
    schema = Schema.decode(proof.schema)
    arrow = schema.group_arrow(proof.group)
    return {
        "row": readable(arrow, decode_row(arrow, proof.row)),
        "schema": str(schema),
        "place": f"row {proof.leaf} of {proof.count}, column group {proof.group}",
        "receipt": proof.receipt is not None,
        "topic_row": proof.topic is not None,
        "parcel": _header(proof.header),
        "permit": _permit(proof.permit),
    }


def _receipt(data: bytes) -> Facts:
    from tallystick.trust.promise import Anchor
    from tallystick.trust.receipt import Receipt

    receipt = Receipt.decode(data)
    anchor = Anchor.decode_entry(receipt.anchor.entry)
    return {
        "token": anchor.token,
        "partition": anchor.partition,
        "offset": receipt.offset,
        "anchored_size": anchor.size,
        "anchored_root": anchor.root,
        "transaction": receipt.anchor.number,
        "checkpoint": _checkpoint(receipt.anchor.note),
    }


def _permit(data: bytes) -> Facts:
    from tallystick.trust.permit import Permit

    permit = Permit.decode(data)
    return {
        "permit": permit.identifier,
        "instance": permit.instance,
        "operation": permit.operation.name.lower(),
        **fields(permit, "token principal"),
        "epochs": f"{permit.first_epoch} to {permit.last_epoch}",
        **fields(permit, "not_before_ms not_after_ms authority"),
        "labels": list(permit.labels),
    }


def _promise(data: bytes) -> Facts:
    from tallystick.trust.promise import Promise

    promise = Promise.decode(data)
    facts = fields(promise, "instance node token partition offset parcel height")
    return facts | {"block_time_ms": promise.time_ms}


def _joint_promise(data: bytes) -> Facts:
    from tallystick.trust.promise import JointPromise

    promise = JointPromise.decode(data)
    facts = fields(promise, "instance overlay plan fence token partition offset parcel height")
    return facts | {"block_time_ms": promise.time_ms, **_signed(promise)}


def _joint_anchor(data: bytes) -> Facts:
    """As relays sign it, or as it stands on the ledger, which knows the rest."""
    from tallystick import wire
    from tallystick.trust.promise import JOINT_ANCHOR_PREFIX, JointAnchor

    is_entry = data.startswith(JOINT_ANCHOR_PREFIX)
    joint = JointAnchor.of(wire.decode(data, "entry"), b"", b"", b"") if is_entry else JointAnchor.decode(data)
    facts = fields(joint, "plan fence token partition size root before")
    return facts | _signed(joint) if is_entry else fields(joint, "instance overlay") | facts | _signed(joint)


def _signed(joint: Joint) -> Facts:
    """By relays of a virtual node, whom the plan knows by these numbers."""
    node = {"virtual_node": joint.node} if joint.node else {}
    return node | {"signed_by_relays": [index for index, _ in joint.signatures]}


def _certificate(data: bytes) -> Facts:
    from tallystick.trust.certificate import ROOT_ID, Certificate

    certificate = Certificate.decode(data)
    return {
        "instance": certificate.instance,
        "kind_of_subject": certificate.kind.name.lower(),
        **fields(certificate, "subject tenant signing_key not_before_ms not_after_ms"),
        "issuer": "the root" if certificate.issuer == ROOT_ID else certificate.issuer,
    }


def _lock(data: bytes) -> Facts:
    from tallystick.parcel.locks import (
        ErasureLock,
        OwnPolicyLock,
        ShareLock,
        TopicLock,
        TopicPolicyLock,
        decode_lock,
        lock_hash,
    )
    from tallystick.policy.show import show

    lock = decode_lock(data)
    facts: Facts = {"name": lock_hash(data), "instance": lock.instance, "lane": lock.lane}
    match lock:
        case TopicLock():
            return facts | {"opens_for": [{"token": token, "epoch": epoch} for token, epoch, _ in lock.wraps]}
        case ErasureLock():
            return facts | {"token": lock.token, "publisher": lock.publisher, "erasure_period": lock.period}
        case ShareLock():
            return facts | {"overlay": lock.overlay, "plan": lock.plan}
        case TopicPolicyLock():
            policy = {"token": lock.token, "group": lock.group, "policy_version": lock.version}
            return facts | policy | {"attribute_epoch": lock.epoch}
        case OwnPolicyLock(hidden=True):
            return facts | {"policy": "hidden under the topic lock", "payload_bytes": len(lock.payload)}
        case OwnPolicyLock():
            capsule = lock.capsule(None)
            return facts | {"policy": show(capsule.formula), "attribute_epoch": capsule.epoch}


def _finding(data: bytes) -> Facts:
    from tallystick.client.reader import Finding

    finding = Finding.decode(data)
    facts = fields(finding, "reason message token partition offset publisher sequence")
    return facts if finding.end is None else facts | {"end": finding.end}


def _contradiction(data: bytes) -> Facts:
    """What the memory of checkpoints kept: the note that was known, and another, or its size and root alone."""
    from tallystick import wire

    match wire.decode(data, "contradiction"):
        case [str() as reason, bytes() as known, bytes() as shown]:
            return {"reason": reason, "accepted": _checkpoint(known), "shown": _checkpoint(shown)}
        case [str() as reason, bytes() as known, int() as size, bytes() as root]:
            return {
                "reason": reason,
                "accepted": _checkpoint(known),
                "somebody_was_shown": {"size": size, "root": root},
            }
    raise Malformed("not a contradiction")


READERS: dict[str, Callable[[bytes], Facts]] = {
    "trust file": _trust,
    "invitation": _invitation,
    "checkpoint": _checkpoint,
    "parcel": _parcel,
    "proof": _proof,
    "receipt": _receipt,
    "permit": _permit,
    "promise": _promise,
    "joint promise": _joint_promise,
    "joint anchor": _joint_anchor,
    "certificate": _certificate,
    "lock": _lock,
    "finding": _finding,
    "parcel header": _header,
    "contradiction of checkpoints": _contradiction,
}
