"""Topic policies: what the owner of a topic asks of whoever opens a column group, as a commitment.

Threat: an authority, restored or dishonest, that hands out the keys of an older, wider policy; a policy that somebody
else than the owner set or lifted. Invariant: versions of a group's policy count up by one under the owner's signature,
and the ledger names the newest. The formula stays at the authority, since it gives away who reads a topic; the
commitment is salted.

    policy/<token><u8 group>   [version, commitment or empty where lifted, height]
"""

from __future__ import annotations

from typing import Any

from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import topics
from tallystick.ledger.contracts.call import Call
from tallystick.trust.signed import Fields

GROUP_MAX = 255


def policy(call: Call, entry: list[Any]) -> None:
    """[46, token, group, version, commitment or empty]; by the topic's owner. An empty one lifts the policy."""
    fields = Fields(entry, "topic policy", 5)
    fields.number()
    token, group, version = fields.octets(16), fields.number(GROUP_MAX), fields.number((1 << 32) - 1, 1)
    commitment = fields.octets(at_most=32)
    if len(commitment) not in (0, 32):
        raise Malformed("topic policy: a commitment of 32 bytes, or none, expected")
    topics.require_owner(call, token)
    known = call.state.get(policy_key(token, group))
    last, held = (known[0], known[1]) if known is not None else (0, b"")
    if version != last + 1:
        raise Refused(f"topic policy: version {last + 1} expected, found {version}", reason="wrong-version")
    if not commitment and not held:
        raise Refused(f"column group {group} has no policy to lift", reason="no-policy")
    call.state.put(policy_key(token, group), [version, commitment, call.height])


def policy_key(token: bytes, group: int) -> bytes:
    return b"policy/" + token + bytes([group])
