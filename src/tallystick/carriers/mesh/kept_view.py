"""What a node of the mesh keeps through restarts: its view, and its neighbours on the topics that it wants itself.

Threat: whoever watches restarts. A node that began anew each time would meet other neighbours and draw other covers,
and what stays the same over many restarts is what it wants (an intersection). And each beginning would be a new chance
for whoever stands at its contacts to surround it: so it is kept, too, who brought whom (`membership.py`).

Nothing is kept about topics that the node forwards for others.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick import wire
from tallystick.carriers.mesh.members import MemberEntry
from tallystick.trust.mesh import PSEUDONYM_BYTES
from tallystick.wire import Fields

MEMBERS_MAX = 128  # a view, those who hold it, and far ones of its topics
TOPICS_MAX, LINKS_MAX, NAME_BYTES = 4_096, 64, 16

Members = tuple[tuple[MemberEntry, bytes], ...]


@dataclass(frozen=True)
class KeptView:
    members: Members = ()  # and who brought each
    topics: tuple[tuple[bytes, tuple[bytes, ...]], ...] = ()  # by pseudonym the identities of neighbours

    def encode(self) -> bytes:
        members = [[entry.listed(), introducer] for entry, introducer in self.members[:MEMBERS_MAX]]
        return wire.encode([1, members, [[one, list(links)] for one, links in self.topics[:TOPICS_MAX]]])

    @classmethod
    def decode(cls, data: bytes) -> KeptView:
        """Raises `Malformed`."""
        fields = Fields.parse(data, "mesh view", 3)
        fields.version(1)
        rows = [one.array(2) for one in fields.each(MEMBERS_MAX)]
        members = tuple((MemberEntry.read(row), row.octets(at_most=NAME_BYTES)) for row in rows)
        rows = [one.array(2) for one in fields.each(TOPICS_MAX)]
        topics = tuple((row.octets(PSEUDONYM_BYTES), _names(row)) for row in rows)
        return cls(members, topics)


def _names(row: Fields) -> tuple[bytes, ...]:
    return tuple(one.octets(NAME_BYTES) for one in row.each(LINKS_MAX))
