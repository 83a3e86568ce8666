"""Where outcomes are looked up: the ledger, by proof, and what a reader finds.

Operations come from a topic's history, which is complete by proof; reputations are values proved under a checkpoint. A
place on the ledger is named by its height, so that `tally ledger history` and `tally audit` show it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallystick import wire
from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.client.grants import Held
from tallystick.client.session import Session
from tallystick.client.subscribe import FoundError
from tallystick.demo.scene import AttackSucceeded, expected
from tallystick.demo.stage import Stage
from tallystick.errors import Withheld
from tallystick.ledger.contracts.reputation import STANDINGS
from tallystick.trust.permit import Operation

REPUTATION_START = 100


@dataclass(frozen=True)
class LedgerAct:
    """An operation on the ledger."""

    height: int
    operator: bytes
    reason: str
    count: int


def refusals(session: Session, token: bytes, principal: bytes) -> list[LedgerAct]:
    """What was refused to a principal on a topic, oldest first, by proof. Whoever asks must be allowed to know the
    topic."""
    found, _ = session.history(token)
    acts = [to_act(height, entry) for height, _, entry in reversed(found)]
    return [act for act in acts if act.operator == principal and act.reason]


def to_act(height: int, entry: bytes) -> LedgerAct:
    fields = wire.decode(entry, "operation")
    return LedgerAct(height, fields[1], fields[5], fields[7])


def wait_for_refusals(stage: Stage, topic: str, offender: Session, count: int = 1) -> list[LedgerAct]:
    """Wait until so many acts of the offender on a topic stand on the ledger as refused. Returns them."""
    owner, token, principal = stage.owners[topic], stage.tokens[topic], offender.identity.principal

    def came() -> list[LedgerAct]:
        return enough(refusals(owner, token, principal), count)

    return stage.wait_until(came, f"{count} refusals of {offender.identity.name} on the ledger")


def enough(acts: list[LedgerAct], count: int) -> list[LedgerAct]:
    """The acts, once they stand for so many messages; before that, none."""
    return acts if sum(act.count for act in acts) >= count else []


def reputation(session: Session, principal: bytes) -> tuple[int, int]:
    """(score, height of the blacklisting or 0), proved."""
    standing = session.view.row(STANDINGS(principal))
    return (REPUTATION_START, 0) if standing is None else (standing.score, standing.blacklisted)


def in_history(topic: str, acts: list[LedgerAct]) -> str:
    """Where acts stand, for the table."""
    first, last = acts[0].height, acts[-1].height
    return f"history of {topic}, " + (f"height {first}" if first == last else f"heights {first} to {last}")


@dataclass(frozen=True)
class FoundEvidence:
    """What stopped a reader."""

    reason: str
    message: str
    place: Path | None  # where it is kept, if it is more than a refusal to go on


def finding(session: Session, topic: str, *reasons: str) -> FoundEvidence:
    """What stops a subscriber that reads a topic from the beginning, for one of `reasons`."""
    home, rows = session.identity.home, 0
    kept: list[Path] = []
    try:
        subscriber = session.subscriber(topic, on_finding=lambda found: kept.append(found.keep(home)))
        while True:
            before = subscriber.positions()
            received = subscriber.poll(0)
            rows += sum(one.batch.rows for one in received)
            if not received and before and subscriber.positions() == before:
                break
    except FoundError as stop:
        return FoundEvidence(expected(stop.reason, *reasons, of="subscriber"), str(stop), kept[-1])
    except Withheld as stop:
        return FoundEvidence(expected(stop.reason, *reasons, of="subscriber"), str(stop), _contradiction(home))
    raise AttackSucceeded(f"a subscriber read {rows} rows and found nothing")


def _contradiction(home: Path) -> Path | None:
    """Two checkpoints that cannot both be true, where the reader was shown such."""
    return max((home / "ledger").glob("evidence-*"), default=None)


def subscription(session: Session, topic: str) -> Held:
    """A reader's own grant, its permit shown to the node."""
    held = session.grants.obtain(Operation.SUBSCRIBE, topic, first_epoch=1)
    session.node.subscribe(held.grant.permit)
    return held


def fetch_first(session: Session, held: Held, bytes_max: int = 1) -> Fetched:
    """What lies at the beginning of a topic's first partition, at least one parcel, for whoever has this grant."""
    return session.node.fetch(Fetch(held.grant.token, 0, held.permit.identifier, 0, bytes_max))


def end_offset(session: Session, topic: str) -> int:
    """How many parcels the first partition of a topic holds, as the node tells a rightful reader."""
    return fetch_first(session, subscription(session, topic)).end
