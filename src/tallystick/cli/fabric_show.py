"""`tally fabric topology`, `rules` and `trace`: what the controller knows, what switches hold, and where frames go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import FILE, folder_argument
from tallystick.cli.fabric_picture import TreeNode, draw_svg, draw_text
from tallystick.cli.fabric_switch import read_tls, tls_options
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
    from tallystick.carriers.fabric.planning import RouteTrace
    from tallystick.carriers.fabric.trees import RouteTree
    from tallystick.engines.fabric import FabricState

svg_option = click.option("--svg", type=FILE, help="Write the picture to a file, too.")


@click.command("topology")
@folder_argument
@click.option("--root", help="The switch from which to draw the tree; by default the first.")
@svg_option
@output.json_option
def topology(folder: Path, root: str | None, svg: Path | None, tell: output.Tell) -> None:
    """Show the links and hosts that probes found, and the tree along which flows of a switch go.

    What the controller found is said: flows above their rate, ports that guess labels, switches between which frames
    are altered.

    \b
    Examples:
      tally fabric topology lab
      tally fabric topology lab --root s3 --svg tree.svg
    """
    from tallystick.engines.fabric import FabricFile, FabricState

    state, file = FabricState.read(folder), FabricFile.read(folder)
    root = root or min(state.wiring.switches)
    if root not in state.wiring.switches:
        raise Misuse(f"there is no switch {root}", hint=", ".join(sorted(state.wiring.switches)))
    tree = state.wiring.trees(file.tree)(root)
    node = _tree_node(root, "", tree, state)
    _write(svg, node, f"tree from {root}")
    links = [
        {"from": _named(link.a), "to": _named(link.b), "latency_us": link.latency_us}
        for link in sorted(state.wiring.links)
    ]
    flows = {name.hex(): switch for name, switch in sorted(state.flows.items())}
    hosts = sorted(map(_named, state.hosts))
    told = {"statistics": dict(state.statistics), "findings": list(state.findings)}
    document = {"links": links, "hosts": hosts, "flows": flows, **told}
    rows = [[str(value) for value in one.values()] for one in links]
    alone = sorted(one for one in state.wiring.switches if not tree.covers(one))
    doubtful = state.statistics.get("doubtful", ())
    lines = [*output.table([["from", "to", "latency_us"], *rows]), "", *draw_text(node)]
    lines += [f"not reached from {root}: {', '.join(alone)}"] * bool(alone)
    lines += [f"not known what they hold: {', '.join(doubtful)}"] * bool(doubtful)
    tell(document, *lines, *(f"found {one}" for one in state.findings))


def _tree_node(switch: str, way: str, tree: RouteTree, state: FabricState) -> TreeNode:
    hosts = sorted(place for place in state.hosts if place.switch == switch)
    below = [TreeNode("host", str(place.port), is_host=True) for place in hosts]
    children = sorted((step.down, name) for name, step in tree.steps.items() if step.parent == switch)
    below += [_tree_node(name, str(port), tree, state) for port, name in children]
    return TreeNode(switch, way, below)


@click.command("rules")
@click.argument("where", metavar="DIR|ADDRESS")
@click.option("--switch", "only", help="Of this switch alone.")
@click.option("--device", type=click.IntRange(1, 2**64 - 1), help="The number of the one switch at ADDRESS.")
@tls_options
@output.json_option
def rules(
    where: str,
    only: str | None,
    device: int | None,
    tls_key: Path | None,
    tls_certificate: Path | None,
    tls_roots: Path | None,
    tell: output.Tell,
) -> None:
    """Show the rules that switches hold, as they say themselves, and how much each has carried. It changes nothing.

    \b
    Examples:
      tally fabric rules lab
      tally fabric rules lab --switch s1 --json
      tally fabric rules 127.0.0.1:9559 --device 1
    """
    if device is not None:
        from contextlib import closing

        from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch

        tls = read_tls(tls_key, tls_certificate, tls_roots)
        with closing(P4RuntimeSwitch(where, device, where, tls)) as driver:
            told = _rules_of(driver)
    else:
        with _drivers(Path(where), only) as drivers:
            told = [{"switch": name, **one} for name, driver in drivers.items() for one in _rules_of(driver)]
    rows = [[str(one[name]) for name in ("switch", "epoch", "label") if name in one] + _carried(one) for one in told]
    tell(told, *output.table(rows), none="no rule here: it drops every publication until somebody subscribes")


def _rules_of(driver: P4RuntimeSwitch) -> list[dict[str, Any]]:
    found, counters = driver.read(), driver.counters()
    return [
        {
            "epoch": rule.epoch,
            "label": rule.label.hex(),
            "out": [{"port": port, "label": label.hex()} for port, label in rule.out],
            "packets": counters.get(key, (0, 0))[0],
            "bytes": counters.get(key, (0, 0))[1],
        }
        for key, rule in sorted(found.items())
    ]


def _carried(rule: dict[str, Any]) -> list[str]:
    return [f"{rule['packets']} packets", f"{rule['bytes']} bytes", _ways(rule["out"])]


def _ways(out: list[dict[str, Any]]) -> str:
    return ", ".join(f"port {one['port']} as {one['label']}" for one in out)


@click.command("trace")
@folder_argument
@click.argument("flow")
@click.option("--from", "start", help="Take FLOW for a label at this switch.")
@click.option("--epoch", type=click.IntRange(0, 65_535), help="By default the newest.")
@svg_option
@output.json_option
def trace(folder: Path, flow: str, start: str | None, epoch: int | None, svg: Path | None, tell: output.Tell) -> None:
    """Follow a flow, or a label at a switch, through the tables that switches hold now.

    What is wrong is said: a loop, a label that leads nowhere, two ways to one switch.

    \b
    Examples:
      tally fabric trace lab 00112233445566778899aabbccddeeff
      tally fabric trace lab 00112233445566778899aabbccddeeff --from s2 --svg way.svg
    """
    from tallystick.carriers.fabric.labels import RouteLabels
    from tallystick.carriers.fabric.planning import follow
    from tallystick.engines.fabric import FabricState, fabric_key
    from tallystick.runtime.sources import SystemEntropy
    from tallystick.wire import is_identifier

    state = FabricState.read(folder)
    if not is_identifier(flow):
        raise Misuse(f"{flow}: 32 hex digits expected", hint="tally fabric topology --json shows the flows")
    name, epoch = bytes.fromhex(flow), state.epochs[-1] if epoch is None else epoch
    label = name
    if start is None:
        start = state.flows.get(name)
        if start is None:
            raise Misuse(f"there is no flow {flow}", hint="with --from SWITCH it is taken for a label")
        label = RouteLabels(fabric_key(folder, SystemEntropy())).first(name, start, epoch)
    with _drivers(folder, None) as drivers:
        tables = {one: dict(driver.read()) for one, driver in drivers.items()}
    found = follow(tables, state.wiring.far_ends, start, epoch, label)
    node = _hop_node(found, start, "")
    _write(svg, node, f"flow {flow} in epoch {epoch}")
    delivered = [{"at": _named(place), "label": last.hex()} for place, last in found.delivered]
    document = {"switches": [hop.switch for hop in found.hops], "delivered": delivered, "faults": list(found.faults)}
    lines = draw_text(node) if found.hops else []
    nothing = f"{start} has no rule for it: nobody has subscribed, or it was stopped"
    tell(document, *lines, *(f"fault: {one}" for one in found.faults), none=nothing)


def _hop_node(found: RouteTrace, switch: str, way: str) -> TreeNode:
    hop = next((one for one in found.hops if one.switch == switch), None)
    if hop is None:
        return TreeNode(f"{switch} (no rule)", way)
    from_here = {one.came: one.switch for one in found.hops if one.came is not None and one.came.switch == switch}
    onward = {place.port: name for place, name in from_here.items() if place is not None}
    ends = {place.port for place, _ in found.delivered if place.switch == switch}
    below = []
    for port, label in hop.out:
        if port in onward:
            below.append(_hop_node(found, onward[port], str(port)))
        else:
            text = f"host, as {label.hex()[:8]}…" if port in ends else "nobody"
            below.append(TreeNode(text, str(port), is_host=True))
    return TreeNode(switch, way, below)


@contextmanager
def _drivers(folder: Path, only: str | None) -> Iterator[dict[str, P4RuntimeSwitch]]:
    """The switches, to be read and not led."""
    from tallystick.engines.fabric import FabricFile

    file = FabricFile.read(folder)
    plans = [one for one in file.switches if only in (None, one.name)]
    if not plans:
        raise Misuse(f"there is no switch {only}", hint=", ".join(one.name for one in file.switches))
    drivers = {one.name: file.driver(one) for one in plans}
    try:
        yield drivers
    finally:
        for driver in drivers.values():
            driver.close()


def _named(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}"


def _write(svg: Path | None, node: TreeNode, title: str) -> None:
    if svg is not None:
        output.write_result(svg, draw_svg(node, title).encode())
