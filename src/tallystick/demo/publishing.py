"""Scenes of publishing what one may not, of drowning others, and of ruining their name (EventGuard 4.3, 4.4, 4.7;
BPS 4.4)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from tallystick import wire
from tallystick.carriers.carrier import NotStored, Stored, join_frames
from tallystick.client.session import Session
from tallystick.demo import evidence
from tallystick.demo.evidence import LedgerAct, end_offset, in_history, reputation, wait_for_refusals
from tallystick.demo.forgery import JUNK, envelope_of, exchange, phony_permit, send_bytes
from tallystick.demo.hand import Hand
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen, expected, not_stored, refusal
from tallystick.demo.stage import WRITE, Stage
from tallystick.demo.traffic import sample
from tallystick.errors import Refused
from tallystick.fleet.schemas import schema
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.reputation import EQUIVOCATIONS
from tallystick.ledger.contracts.state import NOBODY
from tallystick.node.instance import open_node_keys
from tallystick.parcel.parcel import Parcel
from tallystick.trust.permit import Operation

WARDS = 9  # from 100, ten a refusal, blacklisted below 20; and one refusal a topic and minute counts
REPLAYS = 12  # of one request: more than a client's retries explain
FLOOD_SIGNED, FLOOD_UNSIGNED = 300, 600
EVIDENCE_MAX = 16  # of one principal in one commit, and an aggregate a reason beside it


def junk_until_blacklisted(stage: Stage) -> Seen:
    """Somebody of the home provider, with a right of its own there, publishes junk to the hospital's topics."""
    spammer, wards = stage.enrol("homes", "spammer", "air", WRITE), [f"ward-{number}" for number in range(WARDS)]
    own, principal = Hand(spammer, "air"), spammer.identity.principal
    acts: list[LedgerAct] = []
    for ward in wards:
        stage.make_topic(ward, "hospital", schema("vitals"))
        not_stored(spammer.node.publish(stage.tokens[ward], [JUNK])[0], "plain", of="junk")
        acts += wait_for_refusals(stage, ward, spammer)
    score, height = reputation(stage.people["doctor"], principal)
    if not height:
        raise AttackSucceeded(f"{len(acts)} junk parcels, and the blacklist has not bitten")
    not_stored(own.send(own.seal_batch(sample("air")))[0], "blacklisted", of="what it has every right to")
    return Seen(
        f"{len(acts)} refusals, reputation {score}, blacklisted at height {height}; its own topic is closed to it too",
        in_history("the wards", acts),
    )


def _blacklisted(stage: Stage, principal: bytes) -> int:
    return reputation(stage.people["doctor"], principal)[1]


def forged_parcels(stage: Stage) -> Seen:
    """A rightful publisher of vitals sends what is not its own, or not what it signed."""
    forger = Hand(stage.enrol("hospital", "forger", "vitals", WRITE), "vitals")
    _must_store(forger)
    captured, before = _captured(stage), end_offset(stage.people["doctor"], "vitals")
    parcel = forger.seal_batch(sample("vitals"), lane=forger.fork())
    key = forger.session.identity.signing_key
    forgeries: dict[str, tuple[str, Parcel]] = {
        "another's parcel under one's own signature": ("not-yours", forger.resign(captured, key=key)),
        "a parcel with another body": ("altered", Parcel(parcel.header, parcel.signature, bytes(len(parcel.body)))),
        "a changed header": ("bad-signature", Parcel(replace(parcel.header, time_ms=1), parcel.signature, parcel.body)),
        "no signature at all": ("bad-signature", Parcel(parcel.header, bytes(64), parcel.body)),
        "a parcel of another instance": ("wrong-instance", forger.resign(parcel, instance=b"i" * 32)),
        "a parcel that does not follow": ("broken-chain", forger.resign(parcel, previous=b"v" * 32)),
    }
    reasons = [not_stored(forger.send(forged)[0], reason, of=what) for what, (reason, forged) in forgeries.items()]
    phony = phony_permit(forger.session, forger.permit, identifier=b"f" * 16)
    reasons.append(refusal(lambda: forger.node.advertise(phony.encode()), "permit-ended", of="a permit of its own"))
    _check_end(stage, before)
    acts = wait_for_refusals(stage, "vitals", forger.session, len(forgeries))
    shown = ", ".join(dict.fromkeys(reasons))
    return Seen(f"{len(reasons)} forgeries refused: {shown}", in_history("vitals", acts))


def replayed_parcels(stage: Stage) -> Seen:
    """A parcel sent again by another, by its own publisher, and inside the very request that was overheard."""
    hand = Hand(stage.enrol("hospital", "wearable", "vitals", WRITE), "vitals")
    thief = stage.enrol("hospital", "eavesdropper", "vitals", WRITE)
    parcel = hand.seal_batch(sample("vitals"))
    path, body = f"/v1/topics/{hand.token.hex()}/parcels", join_frames([parcel.encode()])
    nonce, now = stage.entropy.bytes(16), stage.clock.now()
    first = exchange(hand.session, "POST", path, body=body, nonce=nonce, now=now)
    if first.status != 200:
        raise NotObserved(f"the honest request was answered with {first.status}")
    before = end_offset(stage.people["doctor"], "vitals")
    for _ in range(REPLAYS):
        again = exchange(hand.session, "POST", path, body=body, nonce=nonce, now=now)
        if again.status == 200:
            raise AttackSucceeded("the overheard request was taken a second time")
        reason = expected(wire.decode(again.body)[0], "duplicate", of="the overheard request")
    stolen = not_stored(thief.node.publish(hand.token, [parcel.encode()])[0], "not-yours", of="another's parcel")
    own = hand.send(parcel)[0]
    if not isinstance(own, Stored) or not own.again:
        raise AttackSucceeded("the publisher's own parcel was stored twice")
    _check_end(stage, before)
    acts = wait_for_refusals(stage, "vitals", thief)
    return Seen(
        f"the request {REPLAYS} times more: {reason}; the parcel by another: {stolen}; by its publisher: the first"
        f" offset {own.promises[0].offset}, and nobody is blamed",
        in_history("vitals", acts),
    )


def flood(stage: Stage) -> Seen:
    """Junk without end, signed and unsigned, while a monitor publishes."""
    flooder, token = stage.enrol("homes", "flooder"), stage.tokens["vitals"]
    monitor = Hand(stage.people["ward"], "vitals")
    height = monitor.session.view.refresh().height
    path, body = f"/v1/topics/{token.hex()}/parcels", join_frames([JUNK])
    for number in range(FLOOD_SIGNED):
        with suppress(Refused):
            outcome = flooder.node.publish(token, [JUNK])[0]
            not_stored(outcome, "plain", "blacklisted", of="junk")
        if number == FLOOD_SIGNED // 2:
            _must_store(monitor)
    address = stage.node.url.removeprefix("http://")
    head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    for _ in range(FLOOD_UNSIGNED):
        if send_bytes(address, head + body).status == 200:
            raise AttackSucceeded("unsigned junk was taken")
    _must_store(monitor)
    acts = wait_for_refusals(stage, "vitals", flooder, FLOOD_SIGNED)
    nobody = _wait_for_junk(stage, height, FLOOD_UNSIGNED)
    commits = len({act.height for act in acts})
    entries_made = len(acts) + len(nobody)
    if len(acts) > commits * (EVIDENCE_MAX + 2):
        raise AttackSucceeded(f"{len(acts)} entries for {FLOOD_SIGNED} messages")
    return Seen(
        f"{FLOOD_SIGNED + FLOOD_UNSIGNED} messages became {entries_made} entries of the ledger, all counted; the ward's"
        f" parcels came through",
        f"{in_history('vitals', acts)}; unsigned: height {nobody[0].height} on",
    )


def _must_store(hand: Hand) -> None:
    """What has every right to be taken is taken."""
    outcome = hand.send(hand.seal_batch(sample("vitals")))[0]
    if isinstance(outcome, NotStored):
        raise AttackSucceeded(f"an honest parcel was refused: {outcome.reason}")


def _wait_for_junk(stage: Stage, first: int, count: int) -> list[LedgerAct]:
    """What nobody signed stands on the ledger as aggregates by reason and window."""
    auditor = stage.people["doctor"]

    def came() -> list[LedgerAct]:
        items = auditor.node.audit(kind=int(EntryKind.OPERATION), refused=1, first=first)
        acts = (evidence.to_act(item[0], item[5]) for item in items)
        return evidence.enough([act for act in acts if act.operator == NOBODY], count)

    found = stage.wait_until(came, f"{count} unsigned messages to be counted on the ledger")
    return sorted(found, key=lambda act: act.height)


def framing(stage: Stage) -> Seen:
    """A neighbour, and then the node itself, accuse a publisher of what it did not do."""
    victim, token = stage.enrol("homes", "neighbour", "air", WRITE), stage.tokens["vitals"]
    framer, principal = stage.enrol("homes", "framer", "air", WRITE), victim.identity.principal
    before = reputation(framer, principal)
    # In its name, under another key: nobody's act.
    path, body = f"/v1/topics/{token.hex()}/parcels", join_frames([JUNK])
    for _ in range(12):
        answer = exchange(framer, "POST", path, body=body, principal=principal)
        if answer.status == 200:
            raise AttackSucceeded("a request in another's name was believed")
    # Its rightful request, overheard and told as a misdeed; a bare claim; somebody else's misdeed.
    rightful, own = envelope_of(victim, stage.tokens["air"]), envelope_of(framer, token)
    claims = [(b"", rightful.base_hash), (rightful.evidence(), rightful.base_hash), (own.evidence(), own.base_hash)]
    entry = _accusation(principal, token, *claims[0])
    refusal(lambda: framer.author.write(entry), "not-host", "not-node", of="an operation written by a neighbour")
    for proof, request in claims:
        _write_as_node(stage, framer, _accusation(principal, token, proof, request))
    after = reputation(framer, principal)
    if after[1] or after[0] < before[0]:
        raise AttackSucceeded(f"the victim's reputation fell from {before[0]} to {after[0]}")
    height = framer.view.refresh().height
    return Seen(
        f"12 requests in its name and {len(claims)} accusations by the node: its reputation is {after[0]} as before",
        f"reputation of {principal.hex()[:8]}…, proved at height {height}",
    )


def _accusation(victim: bytes, token: bytes, proof: bytes, request: bytes) -> bytes:
    return entries.operation(
        victim, OperatorRole.PUBLISHER, token, 2, time_ms=1, request=request, reason="no-right", evidence=proof
    )


def _write_as_node(stage: Stage, messenger: Session, entry: bytes) -> None:
    """Whoever has the node's key writes in its name; the node itself may write at the same time."""
    keys = open_node_keys(stage.folders.node, stage.trust)
    for _ in range(20):
        number = int(stage.clock.now() * 1_000_000)
        transaction = compose(stage.trust.instance, keys.certificate.subject, number, [entry], keys.key)
        try:
            messenger.node.submit(transaction.data)
            return
        except Refused as error:
            if error.reason != "replayed":
                raise
    raise NotObserved("the node's own transactions were always quicker")


def equivocate(stage: Stage) -> Seen:
    """A publisher signs two parcels of one sequence, one for each story."""
    liar = Hand(stage.enrol("hospital", "two-tongues", "vitals", WRITE), "vitals")
    principal = liar.session.identity.principal
    fork = liar.fork()
    one, two = liar.seal_batch(sample("vitals")), liar.seal_batch(sample("vitals", 2), lane=fork)
    if isinstance(liar.send(one)[0], NotStored):
        raise NotObserved("the first story was refused")
    reason = not_stored(liar.send(two)[0], "equivocation", of="the second story")
    stage.wait_until(lambda: bool(_blacklisted(stage, principal)), "the conviction")
    kept = stage.people["doctor"].view.row(EQUIVOCATIONS(principal, one.header.lane, one.header.sequence))
    if kept is None:
        raise NotObserved("the ledger does not hold the two headers")
    not_stored(liar.send(liar.seal_batch(sample("vitals")))[0], "blacklisted", of="what comes after")
    refusal(
        lambda: liar.session.authority.permit(Operation.ADVERTISE, "vitals"), "blacklisted", "no-right", of="a permit"
    )
    return Seen(
        f"the second parcel is refused as {reason}; both signed headers are on the ledger, their publisher blacklisted",
        f"entry {EntryKind.EQUIVOCATION.name.lower()} at height {kept.height}",
    )


def _captured(stage: Stage) -> Parcel:
    """The first parcel of the ward, as it was fetched by somebody who may."""
    doctor = stage.people["doctor"]
    return Parcel.decode(evidence.fetch_first(doctor, evidence.subscription(doctor, "vitals")).parcels[0])


def _check_end(stage: Stage, before: int) -> None:
    after = end_offset(stage.people["doctor"], "vitals")
    if after != before:
        raise AttackSucceeded(f"the log has grown by {after - before} parcels")


SCENES = [
    Scene("junk into another tenant's topics", "refused each time, until the blacklist bites", junk_until_blacklisted),
    Scene("forged parcels", "each refused by its own reason; the log does not grow", forged_parcels),
    Scene("replayed parcels", "neither stored twice nor held against anybody", replayed_parcels),
    Scene("flooding", "few entries however many messages; others go on", flood),
    Scene("framing a neighbour", "a reputation falls only by what its owner signed", framing),
    Scene("an equivocating publisher", "one story is taken, both are kept as evidence", equivocate),
]
