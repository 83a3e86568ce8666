"""How somebody shows that keys are its own, when it enrols and when it replaces them: what is signed, what is opened.

Why each is asked for is said where it is checked, in `enrolment`; this is what both sides compute alike.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused

ENROL_CONTEXT = "tallystick enrol 1"
REKEY_CONTEXT = "tallystick rekey 1"
INVITE_BYTES = 16


def sign_enrolment(instance: bytes, invite: str, name: str, key: SigningKey, sealing_key: bytes) -> bytes:
    """The newcomer's proof that it holds the signing key."""
    statement = enrol_statement(instance, parse_invite(invite), name, key.public.raw, sealing_key)
    return key.sign(ENROL_CONTEXT, statement)


def enrol_statement(instance: bytes, code: bytes, name: str, signing_key: bytes, sealing_key: bytes) -> bytes:
    return wire.encode([instance, secret_hash(code), name, signing_key, sealing_key])


def enrol_challenge_info(instance: bytes, principal: bytes) -> bytes:
    return wire.encode(["tallystick enrol challenge 1", instance, principal])


def sign_rekey(instance: bytes, principal: bytes, key: SigningKey, sealing_key: bytes) -> bytes:
    """The proof that one holds the new signing key."""
    return key.sign(REKEY_CONTEXT, rekey_statement(instance, principal, key.public.raw, sealing_key))


def rekey_statement(instance: bytes, principal: bytes, signing_key: bytes, sealing_key: bytes) -> bytes:
    return wire.encode([instance, principal, signing_key, sealing_key])


def rekey_challenge_info(instance: bytes, principal: bytes) -> bytes:
    return wire.encode(["tallystick rekey challenge 1", instance, principal])


def show_invite(code: bytes) -> str:
    """An invitation for people to copy."""
    text = base64.b32encode(code).decode().rstrip("=").lower()
    return "-".join(text[at : at + 6] for at in range(0, len(text), 6))


def parse_invite(text: str) -> bytes:
    try:
        code = base64.b32decode(text[:64].replace("-", "").upper() + "======")
    except (binascii.Error, ValueError):
        raise refused() from None
    if len(code) != INVITE_BYTES:
        raise refused()
    return code


def refused() -> Refused:
    """The one face of every failure to enrol."""
    return Refused(
        "enrolment refused",
        reason="enrolment-refused",
        hint="check the invitation: it works once, and expires; ask for a new one",
    )


def secret_hash(code: bytes) -> bytes:
    return hashlib.sha256(code).digest()
