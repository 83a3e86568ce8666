"""Who a node of the mesh is to its neighbours: an identity, the key of its links, an address; vouched for, not named.

Threat: whoever can make identities at will fills the views of others with its own (a Sybil), and whoever reads an entry
might learn which principal runs the node. So the authority gives each enrolled principal one identity: it signs the
link key and an end, and nothing else, and does not say whose they are. The identity is the hash of the key, so that
nobody else can answer to it, and it occurs nowhere but on the mesh.

The address is the holder's own word. A wrong one leads to a link that never comes up, and the entry is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from tallystick import wire
from tallystick.carriers.mesh.link_keys import identity_of
from tallystick.carriers.mesh.linked import MeshPass
from tallystick.crypto.signatures import SIGNATURE_BYTES, Verifier
from tallystick.errors import Refused
from tallystick.trust.mesh import check_member
from tallystick.wire import Fields, Number, Octets32, octets

ADDRESS_MAX = 64  # "[…]:port" with the longest IPv6 address has 47 characters


def _read_address(fields: Fields) -> str:
    return fields.text(ADDRESS_MAX)


@dataclass(frozen=True)
class MemberEntry:
    """What a view holds of a node. Well-formed; whether it counts, `check` says."""

    key: Octets32  # of its links
    until_ms: Number  # when the certificate ends
    address: Annotated[str, _read_address]
    certificate: Annotated[bytes, octets(SIGNATURE_BYTES)] = field(repr=False)

    @cached_property
    def identity(self) -> bytes:
        return identity_of(self.key)

    def listed(self) -> list[object]:
        """As it stands in a frame."""
        return wire.listed(self)

    @classmethod
    def read(cls, fields: Fields) -> MemberEntry:
        """The next field. Raises `Malformed`."""
        return wire.read_fields(cls, fields.array(4))

    def check(self, now_ms: int, authority: Verifier) -> None:
        """Raise `Refused` unless the authority made its holder a member and the time is not over."""
        if self.until_ms <= now_ms:
            raise Refused("mesh member: its certificate has ended", reason="expired")
        check_member(self.key, self.until_ms, self.certificate, authority)


def member_pass(me: MemberEntry, authority: Verifier) -> MeshPass:
    """What the link layer shows where it knocks, and how it judges what others show: the certificate and its end."""

    def check(key: bytes, shown: bytes, now: float) -> None:
        fields = Fields.parse(shown, "mesh pass", 3)
        fields.version(1)
        until_ms, certificate = fields.number(), fields.octets(SIGNATURE_BYTES)
        MemberEntry(key, until_ms, "", certificate).check(int(now * 1000), authority)

    return MeshPass(wire.encode([1, me.until_ms, me.certificate]), check)
