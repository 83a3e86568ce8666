"""`tally inspect`: what a stranger can see of a file, without any key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tallystick.cli import output
from tallystick.cli.common import show_time
from tallystick.errors import Malformed, Misuse, Refused

Facts = dict[str, Any]


@click.command("inspect")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@output.json_option
def command(file: Path, as_json: bool) -> None:
    """Say what FILE is and show what it tells a stranger: a parcel, lock, permit, promise, certificate, receipt,
    proof, checkpoint, invitation or trust file. Nothing is verified and nothing opened.

    \b
    Examples:
      tally inspect trust.json
      tally inspect row.proof
    """
    data = file.read_bytes()
    for kind, read in READERS.items():
        try:
            facts = read(data)
        except (Refused, Misuse, ValueError):
            continue
        if as_json:
            output.result_json({"kind": kind, **facts})
        else:
            output.result(f"{file}: {kind}, {len(data)} bytes")
            _show(facts, "  ")
        return
    raise Malformed(f"{file}: none of the things that tally knows", hint=f"it knows {', '.join(READERS)}")


def _show(facts: Facts, indent: str) -> None:
    for name, value in facts.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            output.result(f"{indent}{label}:")
            _show(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, item in enumerate(value):
                output.result(f"{indent}{label} {number}:")
                _show(item, indent + "  ")
        elif name.endswith("_ms") and value:
            output.result(f"{indent}{label[:-3]}: {show_time(value)}")
        else:
            output.result(f"{indent}{label}: {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex() or "–"
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value) or "–"
    return "–" if value is None else str(value)


def _trust(data: bytes) -> Facts:
    from tallystick.trust.trustfile import TrustFile

    trust = TrustFile.parse(data)
    return {
        "instance": trust.instance.hex(),
        "name": trust.name,
        "number": trust.number,
        "root_keys": f"{trust.threshold} of {len(trust.roots)} must sign",
        "ledger_keys": f"{trust.ledger_threshold} of {len(trust.ledger_keys)} must sign",
        "witnesses": list(trust.witnesses),
        "quorum": trust.quorum,
    }


def _invitation(data: bytes) -> Facts:
    from tallystick.identity.invitation import Invitation

    invited = Invitation.decode(data.decode("ascii"))
    return {"instance": invited.instance, "authority": invited.authority_url, "nodes": list(invited.node_urls)}


def _checkpoint(data: bytes) -> Facts:
    from tallystick.trust.notes import Checkpoint, Note

    note = Note.decode(data)
    checkpoint = Checkpoint.decode(note.text)
    lines: Facts = dict(line.split(" ", 1) for line in checkpoint.extensions if " " in line)
    if str(lines.get("time", "")).isdigit():
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
        "lane": header.lane,
        "sequence": header.sequence,
        "previous": header.previous,
        "hash": header.hash,
        "topics": [{"token": one.token, "permit": one.permit, "epoch": one.epoch} for one in header.topics],
        "schema_version": header.schema_version,
        "rows": None if header.padded else header.count,
        "time_ms": None if header.padded else header.time_ms,
        "padded": header.padded,
        "pending": header.pending,
        "body_bytes": header.body_bytes,
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
        "token": permit.token,
        "principal": permit.principal,
        "epochs": f"{permit.first_epoch} to {permit.last_epoch}",
        "not_before_ms": permit.not_before_ms,
        "not_after_ms": permit.not_after_ms,
        "authority": permit.authority,
        "labels": list(permit.labels),
    }


def _promise(data: bytes) -> Facts:
    from tallystick.trust.promise import Promise

    promise = Promise.decode(data)
    return {
        "instance": promise.instance,
        "node": promise.node,
        "token": promise.token,
        "partition": promise.partition,
        "offset": promise.offset,
        "parcel": promise.parcel,
        "height": promise.height,
        "block_time_ms": promise.time_ms,
    }


def _certificate(data: bytes) -> Facts:
    from tallystick.trust.certificate import ROOT_ID, Certificate

    certificate = Certificate.decode(data)
    return {
        "instance": certificate.instance,
        "kind_of_subject": certificate.kind.name.lower(),
        "subject": certificate.subject,
        "tenant": certificate.tenant,
        "signing_key": certificate.signing_key,
        "not_before_ms": certificate.not_before_ms,
        "not_after_ms": certificate.not_after_ms,
        "issuer": "the root" if certificate.issuer == ROOT_ID else certificate.issuer,
    }


def _lock(data: bytes) -> Facts:
    from tallystick.parcel.locks import ErasureLock, OwnPolicyLock, TopicLock, TopicPolicyLock, decode_lock, lock_hash
    from tallystick.policy.show import show

    lock = decode_lock(data)
    facts: Facts = {"name": lock_hash(data), "instance": lock.instance, "lane": lock.lane}
    match lock:
        case TopicLock():
            return facts | {"opens_for": [{"token": token, "epoch": epoch} for token, epoch, _ in lock.wraps]}
        case ErasureLock():
            return facts | {"token": lock.token, "publisher": lock.publisher, "erasure_period": lock.period}
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
        case [
            1,
            str(reason),
            str(message),
            bytes(token),
            int(partition),
            offset,
            bytes(publisher),
            _,
            sequence,
            list(),
        ]:
            return {
                "reason": reason,
                "message": message,
                "token": token,
                "partition": partition,
                "offset": offset,
                "publisher": publisher,
                "sequence": sequence,
            }
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
    "certificate": _certificate,
    "lock": _lock,
    "finding": _finding,
}
