"""What the authority tells of a topic's columns: the text of its schemas and, to the owner, of its policies. Both are
held to the ledger here. Asked once for each state of the topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tallystick.client.schemas import held_policy, held_schema
from tallystick.console.viewer import Viewer
from tallystick.console.visit import Visit
from tallystick.errors import Forged, TallystickError
from tallystick.ledger.contracts.attributes import POLICIES
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.policy.show import show
from tallystick.record.schema import Schema

_AGAIN_S = 10.0  # after the authority did not answer
_PATIENCE_S = 3.0
_TOPICS_MAX = 256


@dataclass
class Columns:
    state: object = None  # of the topic, when this was asked
    schemas: dict[int, Schema] = field(default_factory=dict)  # by version; each fits the ledger's hash
    policies: dict[int, str] = field(default_factory=dict)  # by column group, as the ledger commits; empty where lost
    forged: list[str] = field(default_factory=list)  # what it told, and the ledger names another
    trouble: str = ""
    again_at: float = float("inf")


_KEPT: WeakKeyDictionary[Viewer, dict[bytes, Columns]] = WeakKeyDictionary()


def ask_columns(visit: Visit, token: bytes, *, is_own: bool = False) -> Columns:
    """Policies are told to those alone whose topic it is."""
    viewer, mirror = visit.viewer, visit.mirror
    topic, policies = mirror.row(TOPICS(token)), mirror.scan(POLICIES, token)
    state = (None if topic is None else topic.version, policies)
    kept = _KEPT.setdefault(viewer, {})
    found = kept.get(token)
    if found is None or found.state != state or viewer.clock.monotonic() > found.again_at:
        while len(kept) >= _TOPICS_MAX:
            kept.pop(next(iter(kept)))
        found = kept[token] = Columns(state)
        try:
            _ask(visit, token, found, has_policies=is_own and bool(policies))
        except TallystickError as error:
            found.trouble, found.again_at = f"the authority: {error}", viewer.clock.monotonic() + _AGAIN_S
    return found


def _ask(visit: Visit, token: bytes, found: Columns, *, has_policies: bool) -> None:
    session = visit.viewer.session
    with visit.viewer.asking, session.within(_PATIENCE_S):
        for encoded in session.authority.schemas(token):
            try:
                schema = held_schema(visit.mirror.row, token, encoded)
                found.schemas[schema.version] = schema
            except Forged as error:
                found.forged.append(str(error))
        for one in session.authority.topic_policies(token) if has_policies else []:
            try:
                held = held_policy(visit.mirror.row, token, one) if one.formula else None
                found.policies[one.group] = "" if held is None else show(held)
            except Forged as error:
                found.forged.append(str(error))
