"""The authority's requests, described: as OpenAPI, and as the tables of docs/formats/authority.md."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import getdoc
from typing import Any

from tallystick.authority.asks import ASKS, NONCE_BYTES, Ask
from tallystick.authority.codec import Spec, octets, specs


def describe() -> dict[str, Any]:
    """The OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tallystick authority",
            "version": "1",
            "description": "Bodies are CBOR arrays of fixed order. Signed requests follow RFC 9421 as"
            " docs/formats/authority.md has it; the first field of their body is a nonce of 16 bytes.",
        },
        "paths": {ask.path: {"post": _describe(ask)} for ask in ASKS} | _PLAIN,
        "components": {
            "securitySchemes": {
                "signature": {"type": "http", "scheme": "signature", "description": "RFC 9421, Ed25519"}
            }
        },
    }


def table() -> str:
    """The tables."""
    return "\n".join(_section(ask) for ask in ASKS)


def _section(ask: type[Ask[Any]]) -> str:
    lines = [f"### `POST {ask.path}`", "", _about(ask), "", "| | field | type | |", "|---|---|---|---|"]
    for side, named in (("asks", _asked(ask)), ("answers", specs(ask.answers))):
        lines += [f"| {side} | {_words(name)} | {spec.kind} | {spec.about} |" for name, spec in named.items()]
    return "\n".join([*lines, ""])


def _describe(ask: type[Ask[Any]]) -> dict[str, Any]:
    return {
        "summary": _about(ask),
        "security": [{"signature": []}] if ask.signed else [],
        "requestBody": {"required": True, "content": _content(_asked(ask))},
        "responses": {
            "200": {"description": "the answer", "content": _content(specs(ask.answers))},
            "400": {"description": "malformed or misused: [reason, message, hint, extra]"},
            "403": {"description": "refused: [reason, message, hint, extra]; without a body to strangers"},
            "429": {"description": "try again after Retry-After"},
            "503": {"description": "the ledger or the authority is not ready"},
        },
    }


def _about(ask: type[Ask[Any]]) -> str:
    return getdoc(ask) or ""


def _asked(ask: type[Ask[Any]]) -> dict[str, Spec]:
    return {**({"nonce": octets(NONCE_BYTES)} if ask.signed else {}), **specs(ask)}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _content(named: Mapping[str, Spec]) -> dict[str, Any]:
    items = [
        {"title": _words(name), "x-cbor": spec.kind} | ({"description": spec.about} if spec.about else {})
        for name, spec in named.items()
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
