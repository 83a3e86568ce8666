"""`tally status`: how the parts of an instance are, a line each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import FOLDER, home_option, machine, read_trust, require_instance
from tallystick.cli.doctor import Check, show_checks
from tallystick.errors import Refused, TallystickError, Unavailable

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.identity.folder import Identity
    from tallystick.ledger.block import Head
    from tallystick.node.instance import Listening
    from tallystick.trust.trustfile import TrustFile

KAFKA_S = 5.0


@click.command("status")
@click.argument("folder", metavar="[DIR]", type=FOLDER, required=False)
@home_option
@output.json_option
def command(folder: Path | None, home: Path | None, tell: output.Tell) -> None:
    """Say how node, authority, ledger, witnesses or validators, and Kafka are, a line each, and which home is in use.

    They are asked as the identity in --home; with DIR as the operator of the instance there, for whom every validator
    and the node's Kafka are asked too. Exits with 0 if all is well, with 4 where a part is away or not ready, and with
    3 where what it shows does not hold.

    \b
    Examples:
      tally status --home reader
      tally status fleet
    """
    checks = list(_seen_by_operator(folder, home) if folder is not None else _seen_by_identity(home))
    show_checks(checks, tell)
    unwell = ", ".join(dict.fromkeys(check.name for check in checks if check.state in ("away", "bad")))
    if any(check.state == "bad" for check in checks):
        raise Refused(f"not well: {unwell}", reason="status")
    if unwell:
        raise Unavailable(f"not well: {unwell}")


def _seen_by_identity(home: Path | None) -> Iterator[Check]:
    from tallystick.carriers.registry import own_way
    from tallystick.client.session import Session
    from tallystick.identity.choices import read_choices
    from tallystick.identity.folder import Identity

    identity = Identity.load(home)
    yield _home(home, identity)
    nodes = [_serves("node", url) for url in identity.node_urls]
    yield from nodes
    with Session(identity) as session:
        authority = _serves("authority", identity.authority_url)
        try:
            if authority.state == "ok":
                session.authority.names()  # it is the one that we know, and it knows us
        except TallystickError as error:
            authority = _failed("authority", error)
        yield authority
        yield from _ledger(nodes, session.view.refresh, lambda: session.memory.trust)
        way = own_way(identity.home)
        if way is not None and way.scheme == "overlay":
            yield _overlay(session, dict(way.settings))
            return
        for choice in read_choices(identity.home).values():
            yield _serves(choice.carrier, choice.url)
    if way is not None and way.scheme in ("mesh", "fabric"):
        name = way.url
        yield Check(way.scheme, "ok", f"all topics of this identity go over {name}, by its node")
        return
    yield Check("kafka", "none", "this identity goes through the node") if way is None else _kafka(dict(way.settings))


def _seen_by_operator(folder: Path, home: Path | None) -> Iterator[Check]:
    from tallystick.identity.folder import Identity, find_home
    from tallystick.node.settings import read_settings

    folders = require_instance(folder)
    try:
        yield _home(home, Identity.load(find_home(home)))
    except TallystickError as error:
        yield Check("home", "none", str(error))
    settings, trust = read_settings(folders.node), read_trust(folders.trust)
    node, listening = _listening("node", folders.node)
    yield node
    if folders.authority.exists():  # else it is on another machine
        yield _listening("authority", folders.authority)[0]
    engines = {"ledger": settings.ledger, "carrier": settings.carrier, **settings.carrier_settings}
    url = ""
    if listening is not None:  # what the command line said goes before node.toml
        url, engines = listening.url, {**engines, **listening.engines}
    yield from _ledger([node], lambda: _ask_head(url, trust), lambda: trust, engines["ledger"])
    if engines["carrier"].startswith("kafka://"):
        yield _node_kafka(engines["carrier"], engines.get("kafka_settings"))
    else:
        yield Check("kafka", "none", "the node keeps the log itself")


def _home(home: Path | None, identity: Identity) -> Check:
    """Which identity is in use, and who said so."""
    named = "TALLY_HOME" if os.environ.get("TALLY_HOME") == str(home) else "--home"
    return Check("home", "ok", f'{identity.home}, "{identity.name}" ({"tally use" if home is None else named})')


def _listening(name: str, folder: Path) -> tuple[Check, Listening | None]:
    from tallystick.node.instance import read_address

    try:
        listening = read_address(folder)
    except TallystickError as error:
        return Check(name, "away", str(error), error.hint), None
    return _serves(name, listening.url), listening


def _serves(name: str, url: str) -> Check:
    from tallystick.node.supervisor import trouble_at

    trouble = trouble_at(url)
    if trouble:
        return Check(name, "away", f"{url}: {trouble}", "is it running (tally up)?")
    return Check(name, "ok", f"{url} is ready")


def _failed(name: str, error: TallystickError) -> Check:
    """What refuses us, or shows what does not hold, is bad; what stands still or does not answer is away."""
    is_bad = isinstance(error, Refused) and error.reason != "stale-head"
    return Check(name, "bad" if is_bad else "away", str(error), error.hint)


def _ask_head(url: str, trust: TrustFile) -> Head:
    """The newest checkpoint, as anybody may have it."""
    from tallystick.ledger.block import read_head
    from tallystick.runtime.address import Address
    from tallystick.runtime.client import HttpClient

    with HttpClient([Address(url, bytes(16))], None, *machine()) as http:
        return read_head(http.request("GET", "/v1/ledger/checkpoint", attempts_max=1).body, trust)


def _ledger(
    nodes: list[Check], ask: Callable[[], Head], trust: Callable[[], TrustFile], chain: str = ""
) -> Iterator[Check]:
    """The newest checkpoint, and who vouches for it; on a chain whose address is known, how its validators are."""
    head = None
    try:
        if all(node.state == "away" for node in nodes):
            raise Unavailable("no node is ready that could show it")
        head = ask()
        found = f"height {head.height} of {output.show_time(head.time_ms)}, {output.plural(head.size, 'transaction')}"
        yield Check("ledger", "ok", found)
    except TallystickError as error:
        yield _failed("ledger", error)
    name = "validators" if chain or len(trust().ledger_keys) > 1 else "witnesses"
    if chain:
        yield _validators(chain, trust())
    elif name == "witnesses" and not trust().witnesses:
        yield Check(name, "none", "none is named" if head is None else head.vouched_by(trust()))
    elif head is None:
        yield Check(name, "away", "nothing was seen that they signed")
    elif trust().witnesses:
        found = f"{len(head.cosigners)} of {len(trust().witnesses)} cosigned, {trust().quorum} must"
        yield Check("witnesses", "ok" if head.cosigners else "away", f"{found}; {head.vouched_by(trust())}")
    else:
        yield Check(name, "ok", head.vouched_by(trust()))


def _validators(chain: str, trust: TrustFile) -> Check:
    from tallystick.ledger.cometbft.health import look
    from tallystick.ledger.cometbft.rpc import Endpoints

    with closing(Endpoints.parse(chain, machine().clock)) as endpoints:
        health = look(endpoints, trust)
    others = [f"{one.name} is {one.verdict}" for one in health.validators if one.verdict != "ok"]
    good, count = len(health.validators) - len(others), len(health.validators)
    found = ", ".join((f"{good} of {count} are well, {health.threshold} must be", *others, health.verdict))
    if not others:
        return Check("validators", "ok", found)
    split = any(one.verdict == "differs" for one in health.validators)
    return Check("validators", "bad" if split else "away", found, f"tally chain status {chain} --trust FILE says more")


def _node_kafka(carrier: str, file: str | None) -> Check:
    """Kafka as the node knows it."""
    from tallystick.carriers.kafka.credentials import read_settings

    try:
        own = read_settings(file) if file else {}
    except TallystickError as error:
        return _failed("kafka", error)
    return _kafka({"bootstrap.servers": carrier.removeprefix("kafka://"), **own})


def _overlay(session: Session, settings: dict[str, str]) -> Check:
    """Where the identity is linked, and whether it knows relays enough there."""
    from tallystick.carriers.overlay.known_plans import KnownPlans
    from tallystick.identity.overlay import known_relays

    overlay, place = settings["overlay"], settings["edge"]
    try:
        plan = KnownPlans(session.view, session.clock).in_force(bytes.fromhex(overlay))
        edge = plan.node(bytes.fromhex(place))
    except TallystickError as error:
        return _failed("overlay", error)
    known, needed = known_relays(session.identity, edge), edge.faults + 1
    found = f"edge {place} of {overlay}, plan {plan.version}: {len(known)} of {len(edge.relays)} relays are known"
    if len(known) < needed:
        return Check("overlay", "away", f"{found}, {needed} are needed", "tally principal address names them")
    return Check("overlay", "ok", found)


def _kafka(settings: dict[str, str]) -> Check:
    from tallystick.carriers.kafka.client import KafkaClient

    try:
        with closing(KafkaClient(settings)) as kafka:
            brokers = output.plural(kafka.broker_count(KAFKA_S), "broker")
    except TallystickError as error:
        return _failed("kafka", error)
    return Check("kafka", "ok", f"{settings.get('bootstrap.servers')}: {brokers}")
