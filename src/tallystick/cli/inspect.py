"""`tally inspect`: what a stranger can see of a file, without any key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.errors import Malformed, Misuse, Refused

if TYPE_CHECKING:
    from tallystick.trust.promise import Joint

Facts = dict[str, Any]


@click.command("inspect")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@output.json_option
def command(file: Path, tell: output.Tell) -> None:
    """Say what FILE is and show what it tells a stranger: a parcel, lock, permit, promise, certificate, receipt,
    proof, finding, checkpoint, invitation or trust file; an overlay's joint promise or joint anchor. Of a folder, every
    file in it, oldest first. Nothing is verified and nothing opened.

    \b
    Examples:
      tally inspect trust.json
      tally inspect row.proof
      tally inspect reader/evidence
    """
    files = [file]
    if file.is_dir():
        files = sorted((one for one in file.iterdir() if one.is_file()), key=lambda one: one.stat().st_mtime_ns)
        if not files:
            raise Misuse(f"{file}: no file is in this folder")
    for one in files:
        try:
            _show(one, tell)
        except Malformed as error:  # of a folder, the others are shown all the same
            if one == file:
                raise
            output.note(str(error))


def _show(file: Path, tell: output.Tell) -> None:
    data = file.read_bytes()
    for kind, read in READERS.items():
        try:
            facts = read(data)
        except (Refused, Misuse, ValueError):
            continue
        tell({"kind": kind, **facts}, f"{file}: {kind}, {len(data)} bytes", *_lines(facts, "  "))
        return
    raise Malformed(f"{file}: none of the things that tally knows", hint=f"it knows {', '.join(READERS)}")


def _lines(facts: Facts, indent: str) -> Iterator[str]:
    for name, value in facts.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            yield f"{indent}{label}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, item in enumerate(value):
                yield f"{indent}{label} {number}:"
                yield from _lines(item, indent + "  ")
        elif name.endswith("_ms") and value:
            yield f"{indent}{label[:-3]}: {output.show_time(value)} ({value} ms)"
        else:
            yield f"{indent}{label}: {output.show_value(value)}"


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
        **output.fields(header, "lane sequence previous hash"),
        "topics": [output.fields(one, "token permit epoch") for one in header.topics],
        "schema_version": header.schema_version,
        "rows": None if header.padded else header.count,
        "time_ms": None if header.padded else header.time_ms,
        **output.fields(header, "padded pending body_bytes"),
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
        **output.fields(permit, "token principal"),
        "epochs": f"{permit.first_epoch} to {permit.last_epoch}",
        **output.fields(permit, "not_before_ms not_after_ms authority"),
        "labels": list(permit.labels),
    }


def _promise(data: bytes) -> Facts:
    from tallystick.trust.promise import Promise

    promise = Promise.decode(data)
    facts = output.fields(promise, "instance node token partition offset parcel height")
    return facts | {"block_time_ms": promise.time_ms}


def _joint_promise(data: bytes) -> Facts:
    from tallystick.trust.promise import JointPromise

    promise = JointPromise.decode(data)
    facts = output.fields(promise, "instance overlay plan fence token partition offset parcel height")
    return facts | {"block_time_ms": promise.time_ms, **_signed(promise)}


def _joint_anchor(data: bytes) -> Facts:
    """As relays sign it, or as it stands on the ledger, which knows the rest."""
    from tallystick import wire
    from tallystick.trust.promise import JOINT_ANCHOR_PREFIX, JointAnchor

    is_entry = data.startswith(JOINT_ANCHOR_PREFIX)
    joint = JointAnchor.of(wire.decode(data, "entry"), b"", b"", b"") if is_entry else JointAnchor.decode(data)
    facts = output.fields(joint, "plan fence token partition size root before")
    return facts | _signed(joint) if is_entry else output.fields(joint, "instance overlay") | facts | _signed(joint)


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
        **output.fields(certificate, "subject tenant signing_key not_before_ms not_after_ms"),
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
    from tallystick import wire

    match wire.decode(data, "finding"):
        case [1, str(), str(), bytes(), int(), _, bytes(), _, _, list(), *end] as found if len(end) < 2:
            names = ("reason", "message", "token", "partition", "offset", "publisher", "lane", "sequence")
            facts = dict(zip(names, found[1:9], strict=True))
            del facts["lane"]
            return facts | ({"end": end[0]} if end else {})
    raise Malformed("not a finding")


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
}
