"""`tally overlay up` and `tally overlay chaos`: an overlay on this machine, for trials and tests, and faults in it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, machine, now_ms, on_signal
from tallystick.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from tallystick.engines.overlay import TrialOverlay
    from tallystick.node.supervisor import Child, ChildFailed, Keeper

NODES, RELAYS, OVERLAY = "hub,edge-a,edge-b", 3, "city"
_BLOCK_MS = 500  # of the trial's own chain: a plan counts some twenty blocks after it was written
_VALIDATORS_S = 5.0  # between two looks at the validators


@click.command("up")
@folder_argument
@click.option(
    "--nodes", help=f"Its virtual nodes, the first time; a:b hangs a on b instead of on the first. By default {NODES}."
)
@click.option("--relays", type=click.IntRange(3, 7), help=f"Relays of each, the first time; by default {RELAYS}.")
@click.option("--overlay", "name", help=f"What it is called, the first time; by default {OVERLAY}.")
@click.option("--validators", type=click.IntRange(1, 7), help="Of its chain, the first time; by default 1.")
@output.json_option
def up(
    folder: Path, nodes: str | None, relays: int | None, name: str | None, validators: int | None, tell: output.Tell
) -> None:
    """Run an overlay on this machine, for trials: in DIR, every relay a process, until SIGINT or SIGTERM.

    What is missing is made the first time: an instance on a chain of its own, the relays, an administrator, the overlay
    and its plan. Says on stdout where everything listens; each relay writes to its relay.log. One that dies is started
    again.

    \b
    Examples:
      tally overlay up trial
      tally overlay up trial --nodes hub,edge-a,edge-b,far:edge-b --relays 3 --validators 4
    """
    from tallystick.node.instance import claim
    from tallystick.node.supervisor import ChildFailed, Keeper
    from tallystick.node.validator import find_cometbft
    from tallystick.runtime.logs import configure_logs

    configure_logs(json=False, level="warning")
    find_cometbft()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with claim(folder):  # one at a time; and `chaos` finds us by it
        trial = _prepare(folder, nodes, relays, name, validators)
        keeper = Keeper(machine().clock)
        on_signal(keeper.stop)
        try:
            _run(trial, keeper, tell)
        except ChildFailed as failure:
            if failure.code:  # else it was we who were asked to end
                sys.exit(failure.code)


def _prepare(
    folder: Path, nodes: str | None, relays: int | None, name: str | None, validators: int | None
) -> TrialOverlay:
    """Everything on disk that does not need a process."""
    from tallystick.cli.dev import make_chain
    from tallystick.engines.chain import validator_folders
    from tallystick.engines.overlay import TrialOverlay, read_tree
    from tallystick.ledger.cometbft.home import ChainTiming
    from tallystick.node.instance import Folders
    from tallystick.node.processes import free_ports
    from tallystick.node.settings import NodeSettings

    tree = read_tree(nodes or NODES)
    if (folder / "overlay.json").exists():
        trial = TrialOverlay.open(folder)
        chosen = (
            nodes is None or tree == trial.tree,
            relays in (None, len(trial.nodes[0].relays)),
            name in (None, trial.name),
            validators in (None, len(validator_folders(folder))),
        )
        if not all(chosen):
            hint = "leave --nodes, --relays, --overlay and --validators out, or use another folder"
            raise Misuse(f"{folder}: its overlay was made otherwise", hint=hint)
    else:
        if not Folders(folder).trust.exists():
            output.note("making an instance on a chain of its own …")
            port, authority_port = free_ports(2)
            settings = NodeSettings(port=port, authority_port=authority_port)
            make_chain(folder, validators or 1, 0, settings, ChainTiming(block_ms=_BLOCK_MS))
        elif not validator_folders(folder):
            hint = "the nodes of an overlay share a ledger: choose another folder, or tally dev chain up"
            raise Misuse(f"{folder}: its ledger is embedded, or its validators are elsewhere", hint=hint)
        trial = TrialOverlay.create(folder, name or OVERLAY, tree, relays or RELAYS)
    made = trial.make_relays(now_ms(), machine().entropy)
    if made:
        output.note(f"{output.plural(made, 'relay')} made, in {folder / 'relays'}")
    return trial


def _run(trial: TrialOverlay, keeper: Keeper, tell: output.Tell) -> None:
    from tallystick.engines.chain import start_chain, start_ended, stop_chain, validator_folders
    from tallystick.node.supervisor import Child

    clock, folder = machine().clock, trial.folder
    start = ["up", str(folder), "--supervised", "--json"]
    node = Child("node", [*start, "--node-only"], with_passphrase=False, log=folder / "node.log")
    authority = Child("authority", [*start, "--authority-only"], with_passphrase=True, log=folder / "authority.log")
    relays = [trial.child(relay) for relay in trial.relays]
    looked = clock.monotonic()

    def look_at_validators() -> None:
        nonlocal looked
        if clock.monotonic() - looked > _VALIDATORS_S:
            looked = clock.monotonic()
            start_ended(folder)

    try:
        output.note(f"starting {output.plural(len(validator_folders(folder)), 'validator')}, node and authority …")
        start_chain(folder, clock)
        for child in (node, authority):
            _start(keeper, child)
        _bring_into_force(trial, keeper)
        output.note(f"starting {output.plural(len(relays), 'relay')} …")
        _start(keeper, *relays)
        _wait_relaying(trial, keeper)
        if not keeper.is_stopping:
            _tell_ready(trial, (node, authority), tell)
        keeper.watch(look_at_validators)
    finally:
        output.note("ending …")
        keeper.end()
        stop_chain(folder, clock)


def _start(keeper: Keeper, *children: Child) -> None:
    """Returns when all serve. An error names the one that does not, and what it wrote last."""
    from tallystick.node.supervisor import ChildFailed

    try:
        keeper.start(*children)
        for child in children:
            keeper.wait_ready(child)
    except ChildFailed as failure:
        if failure.code:
            raise _ended(children, failure) from failure
        raise


def _wait_relaying(trial: TrialOverlay, keeper: Keeper) -> None:
    """Returns when every relay forwards, beyond being a node that serves."""
    from tallystick.engines.overlay import trouble_of
    from tallystick.node.supervisor import READY_S

    clock = machine().clock
    deadline = clock.monotonic() + READY_S
    for relay in trial.relays:
        while trouble := trouble_of(relay.url):
            if clock.monotonic() > deadline:
                raise Unavailable(f"{relay.name}: {trouble}", hint=f"read {trial.child(relay).log}")
            keeper.pause()


def _ended(children: tuple[Child, ...], failure: ChildFailed) -> Unavailable:
    child = next((one for one in children if one.process is not None and one.process.poll() is not None), children[0])
    assert child.log is not None
    words = [line for line in child.log.read_text(errors="replace").splitlines() if line][-2:]
    return Unavailable(f"{child.name} ended with code {failure.code}: {'; '.join(words)}", hint=f"read {child.log}")


def _bring_into_force(trial: TrialOverlay, keeper: Keeper) -> None:
    """An overlay with a plan in force."""
    from tallystick.client.session import Session
    from tallystick.engines.overlay import Founding, enrol_administrator

    with Session(enrol_administrator(trial.folder, *machine())) as session:
        founding = Founding(trial, session, keeper.pause)
        founding.wait_for_contracts()
        founding.enrol_relays()
        if founding.found():
            output.note(f"overlay {trial.name} founded; its administrator is in {trial.folder / 'administrator'}")
        if founding.bring_plan():
            output.note(f"plan signed and submitted, from {trial.plan_file}; it counts in some twenty blocks …")
        output.note(f"plan {founding.wait_for_plan()} of {trial.name} is in force")


def _tell_ready(trial: TrialOverlay, parts: tuple[Child, Child], tell: output.Tell) -> None:
    from tallystick.engines.chain import chain_url

    ledger = chain_url(trial.folder)
    listed = [
        {
            "node": node.name,
            "relay": relay.name,
            "url": relay.url,
            "links": f"127.0.0.1:{relay.link_port}",
        }
        for node in trial.nodes
        for relay in node.relays
    ]
    told = {"overlay": trial.name, "ledger": ledger, **{one.name: one.url for one in parts}, "relays": listed}
    rows = [[one.name, one.url, ""] for one in parts]
    rows += [[str(one["relay"]), str(one["url"]), f"links at {one['links']}"] for one in listed]
    tell(told, f"ledger {ledger}", *output.table(rows))
    here, edge = trial.folder, trial.nodes[:2][-1]
    for line in (
        f"tally tenant create acme {here} > owner.invite",
        "tally principal enrol owner.invite --home owner",
        "tally topic create brakes --schema … --home owner",
        f"tally overlay entrust brakes {trial.name} {edge.name} --home owner",
        f"tally principal invite $(cat {trial.urls_file(edge)}) --home owner > car.invite",
        "tally principal enrol car.invite --home car",
        f"tally principal overlay {trial.name} {edge.name} --home car",
    ):
        output.note(f"next: {line}")


@click.command("chaos")
@folder_argument
@output.default_option("--seed", type=click.IntRange(0), default=0, help="Draws the schedule: the same seed, the same.")
@output.default_option("--seconds", type=click.IntRange(1), default=60, help="How long.")
@output.default_option("--faults", default="kill,stall,restart", help="Which kinds.")
@click.option("--show", is_flag=True, help="Show the schedule, and do nothing.")
@output.json_option
def chaos(folder: Path, seed: int, seconds: int, faults: str, show: bool, tell: output.Tell) -> None:
    """Kill, stall and restart relays of the overlay that tally overlay up runs in DIR.

    Of each virtual node at most f relays at a time: of three relays one, of five two. In the end all are as they were.
    With --json every fault is one line. Processes that are not of DIR are not touched.

    \b
    Examples:
      tally overlay chaos trial --seed 7 --seconds 120
      tally overlay chaos trial --faults stall
    """
    from tallystick.engines.chaos import KINDS, Chaos, draw_faults
    from tallystick.engines.overlay import TrialOverlay

    kinds = faults.split(",")
    if unknown := [one for one in kinds if one not in KINDS]:
        raise Misuse(f'fault "{unknown[0]}" is unknown', hint=f"known are {', '.join(KINDS)}")
    trial = TrialOverlay.open(folder)
    relays = {node.name: [relay.name for relay in node.relays] for node in trial.nodes}
    drawn = draw_faults(seed, seconds, kinds, relays)

    def say(at_s: float, kind: str, relay: str, words: str) -> None:
        told = {"at_s": round(at_s, 3), "fault": kind, "relay": relay, "detail": words}
        tell(told, f"{at_s:7.1f} s  {kind:<8} {relay:<16} {words}")

    if show:
        for one in drawn:
            say(one.at_s, one.kind, one.relay, f"for {one.lasts_s:.1f} s")
        return
    ended = threading.Event()
    on_signal(ended.set)
    done = Chaos(trial, machine().clock, say, ended.is_set).run(drawn)
    output.note(f"{output.plural(done, 'fault')}, and all relays are back; the seed was {seed}")
