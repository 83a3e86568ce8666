"""What a simulation puts in the place of sealing and verifying: quicker, and no more credulous."""

from __future__ import annotations

import pytest

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged
from tallystick.sim.sealing import remembered_signatures

CONTEXT = "tallystick test 1"
KEY, OTHER = (SigningKey.from_seed(bytes([number]) * 32) for number in (1, 2))


def test_a_remembered_signature_speaks_for_its_key_its_context_and_its_message_alone() -> None:
    with remembered_signatures():
        signature, raw = KEY.sign(CONTEXT, b"message"), KEY.sign_raw(b"message")
        KEY.public.verify(CONTEXT, signature, b"message")
        KEY.public.verify_raw(raw, b"message")
        for key, context, given, message in [
            (OTHER, CONTEXT, signature, b"message"),
            (KEY, "tallystick test 2", signature, b"message"),
            (KEY, CONTEXT, signature, b"another"),
            (KEY, CONTEXT, raw, b"message"),
            (KEY, CONTEXT, bytes([signature[0] ^ 1]) + signature[1:], b"message"),
        ]:
            with pytest.raises(Forged):
                key.public.verify(context, given, message)
        with pytest.raises(Forged):
            KEY.public.verify_raw(signature, b"message")


def test_what_was_signed_elsewhere_is_verified() -> None:
    signature = KEY.sign(CONTEXT, b"message")
    with remembered_signatures():
        KEY.public.verify(CONTEXT, signature, b"message")
        with pytest.raises(Forged):
            KEY.public.verify(CONTEXT, bytes(64), b"message")
    KEY.public.verify(CONTEXT, signature, b"message")
