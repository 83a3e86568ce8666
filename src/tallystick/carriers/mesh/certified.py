"""What a publisher of the mesh signs under a certificate: `[body, certificate, signature]`.

Advertisements and envelopes have this form, and so one reader, which bounds what it reads before it reads it.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Self

from tallystick import wire
from tallystick.crypto.signatures import SIGNATURE_BYTES
from tallystick.errors import Malformed
from tallystick.wire import Fields


class Certified:
    """The fields of a subclass but the last two are its body."""

    what: ClassVar[str]  # in errors
    bytes_max: ClassVar[int]
    certificate: bytes
    signature: bytes

    @cached_property
    def body(self) -> bytes:
        """What the publisher signs."""
        return wire.encode([1, *wire.listed(self)])

    def encode(self) -> bytes:
        return wire.encode([self.body, self.certificate, self.signature])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `Malformed`."""
        if len(data) > cls.bytes_max:
            raise Malformed(f"{cls.what}: {len(data)} bytes, at most {cls.bytes_max} expected")
        fields = Fields.parse(data, cls.what, 3)
        body = fields.octets(at_most=len(data))
        certificate, signature = fields.octets(SIGNATURE_BYTES), fields.octets(SIGNATURE_BYTES)
        made = wire.read_as(cls, body, cls.what, certificate=certificate, signature=signature)
        vars(made)["body"] = body  # it has one encoding, and this is it
        return made
