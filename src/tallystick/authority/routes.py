"""The requests of the authority in one table: path, fields, answer; served by `http.py`, described by OpenAPI.

Bodies are wire arrays (CBOR, docs/formats/authority.md). The first field of every signed request is its nonce, 16
bytes that the caller drew: sealed answers are bound to it, and a request sent again with the same nonce is the same
request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tallystick.authority.answers import Caller
from tallystick.authority.authority import Authority
from tallystick.errors import Malformed
from tallystick.ledger.contracts.policies import GROUP_MAX
from tallystick.policy.parse import TEXT_MAX
from tallystick.trust.permit import LAST_EPOCH, Operation
from tallystick.trust.signed import Fields

_RECIPIENTS_MAX = 64  # of one backup

BYTES, TEXT, NUMBER, LIST = "bytes", "text", "integer", "array"

Serve = Callable[[Authority, Caller, Fields], list[Any]]


@dataclass(frozen=True)
class Field:
    name: str
    kind: str
    about: str = ""


@dataclass(frozen=True)
class Route:
    path: str
    about: str
    fields: tuple[Field, ...]  # of the body, behind the nonce where signed
    answer: tuple[Field, ...]
    serve: Serve
    signed: bool = True
    waits: bool = False  # a long poll; its last field is the wait in milliseconds

    def parse(self, body: bytes) -> Fields:
        return Fields.parse(body, f"request {self.path}", len(self.fields) + int(self.signed))


_TOKEN = Field("token", BYTES, "16 bytes")
_PRINCIPAL = Field("principal", BYTES, "16 bytes")
_SEALED = "sealed to the caller's enrolled key for this request"


def _enrol(authority: Authority, _: Caller, fields: Fields) -> list[Any]:
    invite, name = fields.text(64), fields.text(authority.limits.name_characters_max)
    return [authority.enrol(invite, name, fields.octets(), fields.octets(), fields.octets())]


def _confirm(authority: Authority, _: Caller, fields: Fields) -> list[Any]:
    enrolled = authority.confirm_enrolment(fields.octets(), fields.octets())
    return [enrolled.certificate, enrolled.authority, list(enrolled.nodes), enrolled.trust]


def _invite(authority: Authority, caller: Caller, _: Fields) -> list[Any]:
    return [authority.invite(caller)]


def _revoke(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    authority.revoke(caller, fields.octets(16))
    return []


def _rekey(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    return list(authority.rekey(caller, fields.octets(32), fields.octets(), fields.octets(64), fields.octets()))


def _topics(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    name = fields.text(authority.limits.name_characters_max)
    schema = fields.octets(at_most=authority.limits.schema_bytes_max)
    draft = authority.create_topic(caller, name, schema, fields.number(), fields.number())
    return [
        *(draft.token, draft.tenant, draft.schema_hash, draft.partitions, draft.flags),
        *(list(draft.nodes), draft.public, list(draft.rights)),
    ]


def _schemas(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    token, schema = fields.octets(16), fields.octets(at_most=authority.limits.schema_bytes_max)
    return list(authority.propose_schema(caller, token, schema))


def _resolve(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    pattern, principal = fields.text(authority.limits.name_characters_max), fields.octets(16)
    allow, operations, host, mode = bool(fields.number(1)), fields.number(15, 1), fields.text(64), fields.number(2)
    resolved = authority.resolve_rights(caller, pattern, principal, allow, operations, host, mode)
    return [list(resolved.tokens), list(resolved.entries)]


def _permits(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    operation = Operation(fields.number(2, 1))
    name, token = fields.text(authority.limits.name_characters_max), fields.octets(at_most=16)
    if bool(name) == bool(token) or len(token) not in (0, 16):
        raise Malformed("permit: either a topic's name or its token of 16 bytes expected")
    return [authority.permit(caller, operation, name or token, fields.number(LAST_EPOCH), fields.text(TEXT_MAX))]


def _labels(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    return [authority.labels(caller, fields.octets(16), fields.octets())]


def _keys(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    return [authority.keys(caller, fields.octets(16), fields.number()) or b""]


def _undo(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    return [authority.undo(caller, fields.octets(), fields.octets(32))]


def _erase(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    token, publisher = fields.octets(16), fields.octets(16)
    periods = fields.items(authority.limits.periods_max)
    if not all(type(period) is int for period in periods):
        raise Malformed("erase: a period is an integer")
    erased = authority.erase(caller, token, publisher, periods)
    return [[list(pair) for pair in erased.periods], list(erased.holders), list(erased.backups)]


def _rotate(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    rotation = authority.rotate(caller, fields.octets(16))
    return [rotation.epoch, rotation.begins_ms]


def _read_schemas(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    return [authority.schemas(caller, fields.octets(16))]


def _list_tenants(authority: Authority, caller: Caller, _: Fields) -> list[Any]:
    authority.require_operator(caller)
    return [authority.tenants()]


def _tenants(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    authority.require_operator(caller)
    return [authority.create_tenant(fields.text(authority.limits.name_characters_max))]


def _operator_invites(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    authority.require_operator(caller)
    return [authority.invite_to(fields.text(authority.limits.name_characters_max), owns=bool(fields.number(1)))]


def _backup(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    authority.require_operator(caller)
    recipients = fields.items(_RECIPIENTS_MAX)
    if not all(type(one) is str for one in recipients):
        raise Malformed("backup: a recipient is text")
    return list(authority.begin_backup(recipients))


def _backup_part(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    authority.require_operator(caller)
    return [authority.backup_part(fields.octets(16), fields.number())]


def _declare_attributes(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    authority.declare_attributes(caller, fields.octets(at_most=authority.limits.request_bytes_max))
    return []


def _attribute_space(authority: Authority, caller: Caller, _: Fields) -> list[Any]:
    return [authority.attribute_space(caller)]


def _draft_attributes(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    principal, attributes = fields.octets(16), fields.octets(at_most=authority.limits.request_bytes_max)
    return [authority.draft_attributes(caller, principal, attributes, fields.octets(32))]


def _pseudonyms(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    principal, names = fields.octets(16), fields.items(authority.limits.attributes_max)
    if not all(type(name) is str for name in names):
        raise Malformed("pseudonyms: a name is text")
    return [authority.attribute_pseudonyms(caller, principal, names)]


def _attributes(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    return [authority.attributes(caller, fields.octets(at_most=16), fields.octets(at_most=16))]


def _attribute_key(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    return [authority.attribute_key(caller, fields.octets(at_most=16), fields.number(LAST_EPOCH))]


def _draft_policy(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    token, group = fields.octets(16), fields.number(GROUP_MAX)
    formula = fields.octets(at_most=authority.limits.request_bytes_max)
    return [authority.draft_policy(caller, token, group, formula, fields.octets(32))]


def _topic_policies(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    return [authority.topic_policies(caller, fields.octets(16))]


def _names(authority: Authority, caller: Caller, fields: Fields) -> list[Any]:
    return [authority.names(caller, fields.octets(at_most=16))]


ROUTES = (
    Route(
        "/v1/enrol",
        "Begin to enrol: show the invitation and the possession of the signing key.",
        (
            Field("invite", TEXT, "the invitation"),
            Field("name", TEXT, "kept by the authority alone"),
            Field("signing key", BYTES, "Ed25519, 32 bytes"),
            Field("sealing key", BYTES, "X25519 and ML-KEM-768, 1,216 bytes"),
            Field("signature", BYTES, 'context "tallystick enrol 1"'),
        ),
        (Field("challenge", BYTES, "sealed to the sealing key"),),
        _enrol,
        signed=False,
    ),
    Route(
        "/v1/enrol/confirm",
        "Show the opened challenge, and take the certificate home.",
        (_PRINCIPAL, Field("challenge", BYTES, "32 bytes, opened")),
        (
            Field("certificate", BYTES),
            Field("authority", BYTES, "the authority's certificate"),
            Field("nodes", LIST, "certificates of the nodes"),
            Field("trust", TEXT, "trust.json"),
        ),
        _confirm,
        signed=False,
    ),
    Route("/v1/invites", "An invitation to the caller's tenant.", (), (Field("invite", BYTES, _SEALED),), _invite),
    Route("/v1/revoke", "Revoke a principal of the caller's tenant.", (_PRINCIPAL,), (), _revoke),
    Route(
        "/v1/rekey",
        "Replace the caller's keys; its permits end. First without a challenge, then with the opened one.",
        (
            Field("signing key", BYTES, "the new one; Ed25519, 32 bytes"),
            Field("sealing key", BYTES, "the new one; X25519 and ML-KEM-768, 1,216 bytes"),
            Field("signature", BYTES, 'by the new signing key, context "tallystick rekey 1"'),
            Field("challenge", BYTES, "empty, or 32 bytes, opened"),
        ),
        (
            Field("challenge", BYTES, "sealed to the new sealing key, or empty"),
            Field("certificate", BYTES, "of the new keys, or empty"),
        ),
        _rekey,
    ),
    Route(
        "/v1/topics",
        "Draft a topic: the owner signs and submits the entries itself.",
        (
            Field("name", TEXT),
            Field("schema", BYTES, "version 1"),
            Field("partitions", NUMBER),
            Field("flags", NUMBER, "1 erasable, 2 padded"),
        ),
        (
            _TOKEN,
            Field("tenant", BYTES, "16 bytes"),
            Field("schema hash", BYTES, "32 bytes"),
            Field("partitions", NUMBER),
            Field("flags", NUMBER),
            Field("nodes", LIST, "identifiers of the nodes"),
            Field("public", BYTES, "public half of epoch 1; empty where the topic exists"),
            Field("rights", LIST, "grant entries of remembered patterns"),
        ),
        _topics,
    ),
    Route(
        "/v1/schemas",
        "Hand in the next version of a topic's schema: the owner signs and submits the entry itself.",
        (_TOKEN, Field("schema", BYTES)),
        (Field("version", NUMBER), Field("schema hash", BYTES, "32 bytes")),
        _schemas,
    ),
    Route(
        "/v1/topics/schemas",
        "Every version of a topic's schema, for who owns the topic or may describe it.",
        (_TOKEN,),
        (Field("schemas", BYTES, f"wire [text, …], {_SEALED}"),),
        _read_schemas,
    ),
    Route(
        "/v1/topics/labels",
        "The code of a topic's labels, for who may describe it; its owner declares another.",
        (_TOKEN, Field("code", BYTES, "empty: only show it")),
        (Field("code", BYTES, f"that counts, or empty; {_SEALED}"),),
        _labels,
    ),
    Route(
        "/v1/rights/resolve",
        "Expand a pattern over the caller's topics into the entries still to be signed.",
        (
            Field("pattern", TEXT, "a name, or the beginning of one and *"),
            _PRINCIPAL,
            Field("allow", NUMBER, "1 allow, 0 deny"),
            Field("operations", NUMBER, "1 read, 2 write, 4 describe, 8 delete, added"),
            Field("host", TEXT, "* or one host"),
            Field("mode", NUMBER, "0 show, 1 remember for topics to come, 2 forget and withdraw"),
        ),
        (Field("tokens", LIST), Field("entries", LIST)),
        _resolve,
    ),
    Route(
        "/v1/permits",
        "A permit to subscribe or advertise, with its keys.",
        (
            Field("operation", NUMBER, "1 subscribe, 2 advertise"),
            Field("name", TEXT, "in the caller's tenant; empty: by token"),
            Field("token", BYTES, "16 bytes; empty: by name"),
            Field("first epoch", NUMBER, "0: the current one"),
            Field("interest", TEXT, "to subscribe: what of the content is wanted; empty: everything"),
        ),
        (Field("grant", BYTES, _SEALED),),
        _permits,
    ),
    Route(
        "/v1/keys",
        "What changed about a grant; waits for news.",
        (
            Field("permit", BYTES, "its identifier, 16 bytes"),
            Field("version", NUMBER, "of the last grant or update"),
            Field("wait ms", NUMBER),
        ),
        (Field("update", BYTES, f"{_SEALED}; empty: nothing new"),),
        _keys,
        waits=True,
    ),
    Route(
        "/v1/undo",
        "Take a permit back.",
        (Field("permit", BYTES, "the whole permit"), Field("undo token", BYTES, "32 bytes")),
        (Field("order", BYTES, "the signed undo order, for the guards"),),
        _undo,
    ),
    Route(
        "/v1/erase",
        "Destroy erasure keys of a publisher on an erasable topic.",
        (_TOKEN, Field("publisher", BYTES, "16 bytes"), Field("periods", LIST, "empty: all")),
        (
            Field("periods", LIST, "[publisher, period] destroyed"),
            Field("holders", LIST, "principals that were handed a key"),
            Field("backups", LIST, "identifiers of backups that hold a key"),
        ),
        _erase,
    ),
    Route(
        "/v1/rotate",
        "Let a topic's next epoch begin.",
        (_TOKEN,),
        (Field("epoch", NUMBER), Field("begins ms", NUMBER)),
        _rotate,
    ),
    Route(
        "/v1/attributes/declare",
        "Declare the attribute space of the caller's tenant; by the tenant's owner.",
        (Field("space", BYTES, "as policy-locks.md has it"),),
        (),
        _declare_attributes,
    ),
    Route(
        "/v1/attributes/space",
        "The attribute space of the caller's tenant.",
        (),
        (Field("space", BYTES, _SEALED),),
        _attribute_space,
    ),
    Route(
        "/v1/attributes/draft",
        "Draft attributes of a principal: the tenant's owner signs and submits the entries itself.",
        (
            _PRINCIPAL,
            Field("attributes", BYTES, "an attribute set, as policy-locks.md has it"),
            Field("salt", BYTES, "32 bytes, of the commitments"),
        ),
        (Field("pseudonyms", LIST, "in the order of the set"),),
        _draft_attributes,
    ),
    Route(
        "/v1/attributes/pseudonyms",
        "What stands on the ledger for attributes of a principal; by the tenant's owner, to withdraw them.",
        (_PRINCIPAL, Field("names", LIST, "in full, or bare within the tenant's own space")),
        (Field("pseudonyms", LIST, "in the order of the names"),),
        _pseudonyms,
    ),
    Route(
        "/v1/attributes/list",
        "What the caller's tenant granted, by its owner; what the caller holds itself, by anybody else.",
        (
            Field("principal", BYTES, "16 bytes; empty: all"),
            Field("after", BYTES, "empty, or what the last page ended with"),
        ),
        (Field("attributes", BYTES, f"wire [[[principal, name, [value, …], not after ms], …], after], {_SEALED}"),),
        _attributes,
    ),
    Route(
        "/v1/attributes/key",
        "The caller's attribute key, or what takes the one it has to further epochs.",
        (
            Field("known", BYTES, "the identifier of the key that the caller has, or empty"),
            Field("first epoch", NUMBER, "0: the current one"),
        ),
        (Field("key", BYTES, f"wire [1, identifier, key, [[epoch, part], …], current epoch], {_SEALED}"),),
        _attribute_key,
    ),
    Route(
        "/v1/topics/policy",
        "Draft the next policy of a column group: the topic's owner signs and submits the entry itself.",
        (
            _TOKEN,
            Field("group", NUMBER),
            Field("formula", BYTES, "as policy-locks.md has it; empty: to lift the policy"),
            Field("salt", BYTES, "32 bytes, of the commitment"),
        ),
        (Field("version", NUMBER, "to write on the ledger"),),
        _draft_policy,
    ),
    Route(
        "/v1/topics/policies",
        "The policies of a topic, to its owner.",
        (_TOKEN,),
        (Field("policies", BYTES, f"wire [[group, version, formula or empty where lost], …], {_SEALED}"),),
        _topic_policies,
    ),
    Route(
        "/v1/names",
        "The names behind tokens and identifiers, as far as the caller may know them.",
        (Field("after", BYTES, "empty, or what the last page ended with"),),
        (Field("names", BYTES, f"wire [1, [[token, name], …], [[principal, name], …], after], {_SEALED}"),),
        _names,
    ),
    Route(
        "/v1/operator/tenants",
        "A new tenant; by the operator.",
        (Field("name", TEXT),),
        (Field("invite", TEXT, "for the principal that will own the tenant"),),
        _tenants,
    ),
    Route("/v1/operator/tenants/list", "All tenants; by the operator.", (), (Field("names", LIST),), _list_tenants),
    Route(
        "/v1/operator/invites",
        "An invitation to any tenant; by the operator.",
        (Field("tenant", TEXT, "its name"), Field("owns", NUMBER, "1: the principal will own the tenant")),
        (Field("invite", TEXT),),
        _operator_invites,
    ),
    Route(
        "/v1/operator/backup",
        "Back up the whole store, encrypted, to be fetched in parts; by the operator.",
        (Field("recipients", LIST, "age recipients, as text"),),
        (Field("identifier", BYTES, "16 bytes"), Field("size", NUMBER, "of the age file, in bytes")),
        _backup,
    ),
    Route(
        "/v1/operator/backup/part",
        "A part of the newest backup; with the last one the authority forgets it; by the operator.",
        (Field("identifier", BYTES, "16 bytes"), Field("offset", NUMBER, "in the age file")),
        (Field("part", BYTES, "of the age file, from the offset on"),),
        _backup_part,
    ),
)


def describe() -> dict[str, Any]:
    """The OpenAPI document of the table."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tallystick authority",
            "version": "1",
            "description": "Bodies are CBOR arrays of fixed order. Signed requests follow RFC 9421 as"
            " docs/formats/authority.md has it; the first field of their body is a nonce of 16 bytes.",
        },
        "paths": {route.path: {"post": _describe(route)} for route in ROUTES} | _PLAIN,
        "components": {
            "securitySchemes": {
                "signature": {"type": "http", "scheme": "signature", "description": "RFC 9421, Ed25519"}
            }
        },
    }


def table() -> str:
    """The requests as the tables of docs/formats/authority.md."""
    return "\n".join(_section(route) for route in ROUTES)


def _section(route: Route) -> str:
    nonce = (Field("nonce", BYTES, "16 bytes"),) if route.signed else ()
    lines = [f"### `POST {route.path}`", "", route.about, "", "| | field | type | |", "|---|---|---|---|"]
    for side, fields in (("asks", (*nonce, *route.fields)), ("answers", route.answer)):
        lines += [f"| {side} | {field.name} | {field.kind} | {field.about} |" for field in fields]
    return "\n".join([*lines, ""])


def _describe(route: Route) -> dict[str, Any]:
    nonce = (Field("nonce", BYTES, "16 bytes"),) if route.signed else ()
    return {
        "summary": route.about,
        "security": [{"signature": []}] if route.signed else [],
        "requestBody": {"required": True, "content": _content((*nonce, *route.fields))},
        "responses": {
            "200": {"description": "the answer", "content": _content(route.answer)},
            "400": {"description": "malformed or misused: [reason, message, hint, extra]"},
            "403": {"description": "refused: [reason, message, hint, extra]; without a body to strangers"},
            "429": {"description": "try again after Retry-After"},
            "503": {"description": "the ledger or the authority is not ready"},
        },
    }


def _content(fields: tuple[Field, ...]) -> dict[str, Any]:
    items = [
        {"title": field.name, "x-cbor": field.kind} | ({"description": field.about} if field.about else {})
        for field in fields
    ]
    schema = {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    return {"application/cbor": {"schema": schema}}


_PLAIN = {
    path: {"get": {"summary": about, "security": [], "responses": {"200": {"description": "the answer"}}}}
    for path, about in (
        ("/v1/time", "The authority's signed time for the nonce (32 hexadecimal digits) in the query."),
        ("/health/live", "The process answers."),
        ("/health/ready", "Requests are served: 200, or 503 and why not."),
        ("/metrics", "Prometheus metrics."),
        ("/openapi.json", "This document."),
    )
}
