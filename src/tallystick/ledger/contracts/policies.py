"""Topic policies: what the owner of a topic asks of whoever opens a column group, as a commitment.

Threat: an authority, restored or dishonest, that hands out the keys of an older, wider policy; a policy that somebody
else than the owner set or lifted. Invariant: versions of a group's policy count up by one under the owner's signature,
and the ledger names the newest. The formula stays at the authority, since it gives away who reads a topic; the
commitment is salted.

    policy/<token><u8 group>   [version, commitment or empty where lifted, height]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import topics
from tallystick.ledger.contracts.state import ID, U8, Call, Table
from tallystick.wire import Fields

GROUP_MAX = 255


class PolicyRow(NamedTuple):
    version: int
    commitment: bytes  # empty where the policy was lifted
    height: int


POLICIES = Table("policy", PolicyRow, ID, U8)  # by token and column group


def policy(call: Call, entry: list[Any]) -> None:
    """[46, token, group, version, commitment or empty]; by the topic's owner. An empty one lifts the policy."""
    fields = Fields(entry, "topic policy", 5)
    fields.number()
    token, group, version = fields.octets(16), fields.number(GROUP_MAX), fields.number((1 << 32) - 1, 1)
    commitment = fields.octets(at_most=32)
    if len(commitment) not in (0, 32):
        raise Malformed("topic policy: a commitment of 32 bytes, or none, expected")
    topics.require_owner(call, token)
    known = call.state.row(POLICIES(token, group)) or PolicyRow(0, b"", 0)
    if version != known.version + 1:
        raise Refused(f"topic policy: version {known.version + 1} expected, found {version}", reason="wrong-version")
    if not commitment and not known.commitment:
        raise Refused(f"column group {group} has no policy to lift", reason="no-policy")
    call.state.put(POLICIES(token, group), [version, commitment, call.height])
