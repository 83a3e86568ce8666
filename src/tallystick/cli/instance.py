"""`tally instance`: the rules of an instance, changed by its operator.

Everything here concerns all tenants. So each command says first what it changes and for whom, and asks unless `--yes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, machine, now_ms, open_operator, require_instance
from tallystick.errors import Misuse, TallystickError, Unavailable

if TYPE_CHECKING:
    from tallystick.authority.answers import RulesInForce

_SOON, _LATER = 2, 50  # blocks from now

yes_option = click.option("--yes", is_flag=True, help="Do not ask back.")


@click.group("instance")
def command() -> None:
    """Change the rules of an instance: settings, contracts, hosts, witnesses; by the operator.

    \b
    Examples:
      tally instance settings fleet
      tally instance activate fleet
    """


@command.command("settings")
@folder_argument
@click.argument("name", required=False)
@click.argument("value", required=False, type=click.IntRange(0))
@yes_option
@output.json_option
def settings(folder: Path, name: str | None, value: int | None, yes: bool, tell: output.Tell) -> None:
    """Show the numbers that the ledger's rules depend on, or set NAME to VALUE.

    \b
    Examples:
      tally instance settings fleet
      tally instance settings fleet blacklist_below 10
    """
    from tallystick.ledger import entries
    from tallystick.ledger.contracts.settings import SETTINGS

    with open_operator(folder) as operator:
        now = dict(operator.rules().settings)
        if name is None or value is None:
            chosen = {one: number for one, number in now.items() if name in (None, one)}
            if not chosen:
                raise Misuse(f'setting "{name}" does not exist', hint=f"known are {', '.join(now)}")
            rows = [[one, str(number), _bounds(one)] for one, number in chosen.items()]
            tell(chosen, *output.table([["setting", "now", "from, to, by default"], *rows]))
            return
        if name not in SETTINGS:
            raise Misuse(f'setting "{name}" does not exist', hint=f"known are {', '.join(SETTINGS)}")
        ask_back(yes, f"{name}: {now.get(name)} becomes {value}, for all tenants, from the next block on")
        operator.change_rules([entries.set_(name, value)])
    tell({"name": name, "value": value}, f"{name} is {value}")


def _bounds(name: str) -> str:
    from tallystick.ledger.contracts.settings import SETTINGS

    setting = SETTINGS.get(name)
    return "" if setting is None else f"{setting.least}, {setting.most}, {setting.default}"


@command.command("lift")
@folder_argument
@click.argument("principal")
@yes_option
@output.json_option
def lift(folder: Path, principal: str, yes: bool, tell: output.Tell) -> None:
    """Take PRINCIPAL, named by its identifier, off the blacklist.

    \b
    Examples:
      tally instance lift fleet 6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5
    """
    from tallystick.ledger import entries

    identifier = identifier_of(principal)
    ask_back(yes, f"principal {principal} may act again, on every topic it has a right to, from the next block on")
    with open_operator(folder) as operator:
        operator.change_rules([entries.lift(identifier)])
    tell({"principal": principal}, f"principal {principal} is off the blacklist")


@command.command("assign")
@folder_argument
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("nodes", nargs=-1, required=True)
@yes_option
@output.json_option
def assign(folder: Path, topic: str, partition: int, nodes: tuple[str, ...], yes: bool, tell: output.Tell) -> None:
    """Let NODES, named by their identifiers, carry one PARTITION of TOPIC, named by its token.

    What the nodes before them stored stays with them: move it before readers need it.

    \b
    Examples:
      tally instance assign fleet 0b1c2d3e4f5061728394a5b6c7d8e9f0 0 6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5
    """
    from tallystick.ledger import entries

    token, found = identifier_of(topic), [identifier_of(node) for node in nodes]
    ask_back(yes, f"partition {partition} of topic {topic}: from the next block on only {', '.join(nodes)} carry it")
    with open_operator(folder) as operator:
        operator.change_rules([entries.assign(token, partition, found)])
    told = {"topic": topic, "partition": partition, "nodes": list(nodes)}
    tell(told, f"partition {partition} is carried by {', '.join(nodes)}")


@command.command("activate")
@folder_argument
@click.option("--at", "height", type=click.IntRange(1), help=f"From this height on; by default {_LATER} blocks ahead.")
@click.option("--withdraw", is_flag=True, help="Take back what was activated and is not in force yet.")
@yes_option
@output.json_option
def activate(folder: Path, height: int | None, withdraw: bool, yes: bool, tell: output.Tell) -> None:
    """Let the contracts of this release come into force, all at one height.

    First every replica of the ledger is asked what it has: one that lacks a version would stop at that height.

    \b
    Examples:
      tally instance activate fleet
      tally instance activate fleet --withdraw
    """
    from tallystick.ledger import entries

    with open_operator(folder) as operator:
        rules = operator.rules()
        if withdraw:
            changed = [one for one in rules.versions if one[2] > rules.height]
            if not changed:
                raise Misuse("nothing waits to come into force")
            ask_back(yes, f"{_named(changed)}: will not come into force")
            operator.change_rules([entries.withdraw_activation(*one) for one in changed])
            tell([list(one) for one in changed], f"withdrawn: {_named(changed)}")
            return
        changed = list(_missing(rules, height or rules.height + _LATER))
        if not changed:
            tell([], "everything of this release is in force, or will be")
            return
        _check_replicas(folder, changed)
        ask_back(yes, f"{_named(changed)}: for all tenants; replicas and clients of older releases cannot go on")
        operator.change_rules([entries.activate(*one) for one in changed])
    tell([list(one) for one in changed], f"activated: {_named(changed)}")


def _missing(rules: RulesInForce, height: int) -> Iterator[tuple[str, int, int]]:
    """What this release adds. The contract that can withdraw an activation comes first, so that the rest can be."""
    from tallystick.ledger.contracts.execute import newest

    active = {name: version for name, version, _ in rules.versions}
    for name, version in newest().items():
        if active.get(name, 0) < version:
            yield name, version, min(height, rules.height + _SOON) if name == "settings" else height


def _named(activations: list[tuple[str, int, int]]) -> str:
    return ", ".join(f"{name} {version} at height {height}" for name, version, height in activations)


def _check_replicas(folder: Path, wanted: list[tuple[str, int, int]]) -> None:
    """Raise `Unavailable` unless every replica of the ledger answers, and has these versions."""
    for replica, contracts in _replicas(folder):
        if lacking := [f"{name} {version}" for name, version, _ in wanted if contracts.get(name, 0) < version]:
            raise Unavailable(f"{replica}: it has no {', '.join(lacking)}", hint="upgrade tallystick there first")


def _replicas(folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Each replica by name, and the newest versions of contracts that it can run."""
    from tallystick import wire
    from tallystick.carriers.carrier import CONTRACTS_PATH
    from tallystick.ledger.cometbft.rpc import Endpoints
    from tallystick.node.instance import read_address
    from tallystick.node.settings import read_settings
    from tallystick.runtime.address import Address
    from tallystick.runtime.client import HttpClient

    folders = require_instance(folder)
    if ledger := read_settings(folders.node).ledger:
        endpoints = Endpoints.parse(ledger, machine().clock)
        try:
            for one in endpoints.all:
                status = one.ask("status")
                yield one.name, dict(status[5]) if len(status) > 5 else {}
        finally:
            endpoints.close()
        return
    listening = read_address(folders.node)
    with HttpClient([Address(listening.url, listening.certificate.subject)], None, *machine()) as http:
        try:
            answer = wire.decode(http.request("GET", CONTRACTS_PATH, attempts_max=1).body, "contracts")
        except TallystickError as error:
            raise Unavailable(f"{listening.url}: {error}", hint="start it, and upgrade tallystick there") from error
        yield listening.url, dict(answer)


@command.command("trust")
@folder_argument
@click.option("--witness", "witnesses", multiple=True, help="The key of a witness to add, as tally witness prints it.")
@click.option("--witness-url", "urls", multiple=True, help="Where the node reaches it.")
@click.option("--without", "removed", multiple=True, help="The name of a witness to take out.")
@click.option("--quorum", type=click.IntRange(0), help="How many must cosign; by default all.")
@yes_option
@output.json_option
def trust(
    folder: Path,
    witnesses: tuple[str, ...],
    urls: tuple[str, ...],
    removed: tuple[str, ...],
    quorum: int | None,
    yes: bool,
    tell: output.Tell,
) -> None:
    """Give the stopped instance in DIR other witnesses: the root signs a successor of its trust file.

    Clients take the successor up by themselves, on the root's signature, and from then on believe no checkpoint that
    the new quorum has not cosigned.

    \b
    Examples:
      tally instance trust fleet --witness "$(cat witness.vkey)" --witness-url http://127.0.0.1:7420
    """
    from tallystick.node.handover import change_witnesses
    from tallystick.node.instance import find_passphrase, open_root
    from tallystick.trust.trustfile import TrustFile

    folders = require_instance(folder)
    old = TrustFile.parse(folders.trust.read_text())
    kept = tuple(one for one in old.witnesses if one.split("+")[0] not in removed)
    chosen = (*kept, *(one for one in witnesses if one not in kept))
    count = len(chosen) if quorum is None else quorum
    ask_back(
        yes,
        f"{count} of {len(chosen)} witnesses must cosign, for all clients; before, {old.quorum} of"
        f" {len(old.witnesses)}",
    )
    root = open_root(folder, find_passphrase(folder))
    new = change_witnesses(folder, chosen, count, urls, root, now_ms())
    told = {"trust": str(folders.trust), "number": new.number, "witnesses": len(chosen), "quorum": count}
    tell(told, f"{folders.trust}: number {new.number}, {count} of {len(chosen)} witnesses cosign")
    output.note(f"next: tally up {folder}")


def identifier_of(text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise Misuse(f'"{text}": an identifier of 32 hexadecimal digits expected')
    return found


def ask_back(yes: bool, what: str) -> None:
    output.note(what)
    if not yes:
        click.confirm("go on?", abort=True, err=True)
