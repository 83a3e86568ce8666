"""Entries of the ledger in words: the fields of each kind by name, tokens by the topics' names where known."""

from __future__ import annotations

from typing import Any, Protocol

from tallystick import wire
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.trust.certificate import Certificate
from tallystick.trust.right import Right


class Naming(Protocol):
    """Who knows names: `Names`, or whoever keeps them."""

    def topic_name(self, token: bytes) -> str: ...

    def principal_name(self, identifier: bytes) -> str: ...


# As docs/formats/ledger.md lists them, behind the kind.
FIELDS: dict[EntryKind, str] = {
    EntryKind.ENROL: "certificate",
    EntryKind.REVOKE: "subject signature",
    EntryKind.REPLACE: "certificate",
    EntryKind.TENANT: "tenant owner",
    EntryKind.TRUST: "trust",
    EntryKind.TOPIC: "token tenant owner partitions replicas flags nodes schema_hash signature"
    " binding keep anchor_pace_ms fees",  # from "binding" on in version 2
    EntryKind.SCHEMA: "token version schema_hash signature",
    EntryKind.ASSIGN: "token partition nodes",
    EntryKind.CLOSE_TOPIC: "token",
    EntryKind.RETAIN: "token keep",
    EntryKind.RELEASE: "token partition below",
    EntryKind.ANNOUNCE_EPOCH: "token epoch public_key_hash not_before_ms",
    EntryKind.END_EPOCH: "token epoch how time_ms",
    EntryKind.ANNOUNCE_KEY: "token name public_key_hash",
    EntryKind.GRANT: "token principal allow operations host",
    EntryKind.WITHDRAW: "token principal allow operations host",
    EntryKind.ISSUE_PERMIT: "permit leave token principal not_after_ms",
    EntryKind.UNDO_PERMIT: "permit",
    EntryKind.REVOKE_PERMIT: "permit",
    EntryKind.OPERATION: "operator role token operation reason host count partition first end time_ms request evidence",
    EntryKind.ANCHOR: "token partition size root",
    EntryKind.RETIRE: "token partition below root",
    EntryKind.BROKEN_PROMISE: "promise other_leaf proof",
    EntryKind.NOTARISE: "token partition size root before refused",
    EntryKind.GRANT_ATTRIBUTE: "tenant principal pseudonym commitment not_after_ms",
    EntryKind.WITHDRAW_ATTRIBUTE: "tenant principal pseudonym",
    EntryKind.DROP_ATTRIBUTE: "tenant principal pseudonym",
    EntryKind.REFUSE_ATTRIBUTES: "holder tenant refused",
    EntryKind.TOPIC_POLICY: "token group version commitment",
    EntryKind.ATTRIBUTE_EPOCH: "epoch public_key_hash not_before_ms",
    EntryKind.GROUP: "group lease_ms tokens",
    EntryKind.JOIN: "group member",
    EntryKind.LEAVE: "group member",
    EntryKind.COMMIT_OFFSET: "group member token partition fence old new",
    EntryKind.RESET_OFFSET: "group member token partition fence old new",
    EntryKind.LIFT: "principal",
    EntryKind.EQUIVOCATION: "publisher key header signature other_header other_signature",
    EntryKind.WRITE: "token write batch digest",
    EntryKind.ERASE: "token publisher period",
    EntryKind.SET: "name value",
    EntryKind.ACTIVATE: "contract version height",
    EntryKind.WITHDRAW_ACTIVATION: "contract version height",
    EntryKind.OVERLAY: "overlay number administrators threshold signatures",
    EntryKind.PLAN: "plan first_height signatures",
    EntryKind.ENTRUST: "token overlay node lease_ms",
    EntryKind.LEASE: "token partition fence",
    EntryKind.JOINT_ANCHOR: "token partition size root plan fence signatures",
    EntryKind.SUSPECT: "overlay version relay token",
    EntryKind.TWO_SETS: "signer key share_set other_share_set",
    EntryKind.FALSE_SHARE: "signer key share_set share_list number",
    EntryKind.TWO_ORIGINS: "signer key origin other_origin",
    EntryKind.TWO_ORDERS: "signer key index promise other_promise",
    EntryKind.RELEASE_IMAGE: "token image contents",
    EntryKind.WITHDRAW_IMAGE: "token image",
    EntryKind.CAMPAIGN: "token campaign images phases",
    EntryKind.REPORT_CAMPAIGN: "token campaign number phase succeeded failed manifests",
    EntryKind.STOP_CAMPAIGN: "token campaign",
    EntryKind.RESUME_CAMPAIGN: "token campaign",
}
_PEOPLE = ("principal", "operator", "owner", "publisher", "subject", "author", "relay", "signer")
_SIGNED = ("header", "signature", "other_header", "other_signature")
_SHARES = ("share_set", "other_share_set", "share_list", "origin", "other_origin")
_OBJECTS = ("certificate", "trust", "evidence", "promise", "other_promise", "proof", "plan", "signatures")
_LONG = (*_OBJECTS, *_SIGNED, *_SHARES)
_WORDS = {"token": "topic", "allow": "rule"}
_ROLES = {0: "nobody", 1: "publisher", 2: "subscriber"}


def decode(entry: bytes) -> dict[str, Any]:
    """Kind and fields of an entry by name, for machines."""
    number, *values = wire.decode(entry, "entry")
    kind = EntryKind(number)
    fields = FIELDS[kind].split()[: len(values)]  # an older version of a contract may have had fewer
    return {"kind": kind.name.lower(), **dict(zip(fields, values, strict=True))}


def describe(entry: dict[str, Any], names: Naming) -> str:
    """One line for people."""
    if entry["kind"] == "operation":
        return _describe_operation(entry, names)
    rest = {name: value for name, value in entry.items() if name not in (*_LONG, "kind")}
    shown = [
        f"{_WORDS.get(name, name.removesuffix('_ms'))} {_value(name, value, names) or 'none'}"
        for name, value in rest.items()
    ]
    if "certificate" in entry:
        certificate = Certificate.decode(entry["certificate"])
        kind, name = certificate.kind.name.lower(), names.principal_name(certificate.subject)
        tenant = f" of tenant {certificate.tenant.hex()}" if any(certificate.tenant) else ""
        shown.insert(0, f"{kind} {name}{tenant}")
    return f"{entry['kind']}: {', '.join(shown)}".replace("_", " ")


def _describe_operation(entry: dict[str, Any], names: Naming) -> str:
    who = names.principal_name(entry["operator"]) if any(entry["operator"]) else "nobody known"
    what = Right(entry["operation"]).name or "?"
    topic = names.topic_name(entry["token"]) if any(entry["token"]) else "no topic"
    end = f"refused: {entry['reason']}" if entry["reason"] else "accepted"
    place = f", partition {entry['partition']} offsets {entry['first']} to {entry['end']}" if entry["end"] else ""
    times = f", {entry['count']} times" if entry["count"] != 1 else ""
    host = f" from {entry['host']}" if entry["host"] else ""
    role = _ROLES.get(entry["role"], "?")
    return f"{what.lower()} by {who} ({role}){host} on {topic}{place}{times}: {end}"


def _value(name: str, value: Any, names: Naming) -> str:
    if name == "token":
        return names.topic_name(value)
    if name in _PEOPLE:
        return names.principal_name(value)
    if name == "allow":
        return "allow" if value else "deny"
    if name == "operations":
        return "+".join(one.name.lower() for one in Right if value & one and one.name)
    if name.endswith("_ms") and name not in ("lease_ms", "anchor_pace_ms"):
        return wire.show_time(value)
    if isinstance(value, bytes):
        return value.hex()[:32] + "…" * (len(value) > 16)
    if isinstance(value, list):
        return " ".join(_value("", item, names) for item in value)
    return str(value)
