"""`tally mesh attack`: what attackers would learn of a topic on a mesh, before anybody depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.sim.anonymity.survey import AttackFinding, TopicCost

PART = click.FloatRange(0, 1)


@click.command("attack")
@output.default_option("--nodes", type=click.IntRange(10, 5_000), default=500, help="In the mesh, |V|.")
@output.default_option("--degree", type=click.IntRange(2, 48), default=10, help="Neighbours of a node.")
@output.default_option("--subscribers", type=click.IntRange(1), default=50, help="Of the topic, |S|.")
@output.default_option("--publishers", type=click.IntRange(1, 50), default=1, help="Of the topic, |P|.")
@output.default_option("--mu", type=PART, default=0.3, help="μ: how often a member draws a neighbour as a cover.")
@output.default_option("--nu", type=PART, default=0.05, help="ν: how often a cover draws another.")
@output.default_option(
    "--lambda", "decay", type=click.FloatRange(0, 10), default=0.05, help="λ of the shell game, per second."
)
@output.default_option(
    "--play", type=click.FloatRange(0, 600), default=60.0, help="Seconds of games before attackers look; 0: no games."
)
@output.default_option(
    "--dial", type=click.Choice(["off", "padded", "constant"]), default="padded", help="How much links hide."
)
@output.default_option("--insiders", type=click.IntRange(0, 1_000), default=2, help="Nodes that collude.")
@output.default_option("--epochs", type=click.IntRange(0, 365), default=10, help="Watched by who compares them.")
@output.default_option("--seed", type=click.IntRange(0), default=4, help="The same seed draws the same meshes.")
@output.default_option("--seeds", type=click.IntRange(1, 1_000), default=10, help="How many meshes are drawn.")
@output.progress_option
@output.json_option
def attack(seed: int, seeds: int, show_progress: bool, tell: output.Tell, **chosen: Any) -> None:
    """Say what attackers learn of a topic on a mesh with these settings.

    Draws meshes as nodes would build them, and lets every attacker look: who sees all links, who records them for long,
    who plays a part inside. Nothing runs and nobody is asked. Of each attacker it shows how many of those that it names
    are right (precision), how many of those there are it names (recall), how often a guess would be right (base rate),
    how many nodes it names (Eq. 4 of AnonPubSub), how often it judges a node rightly (Eq. 5), which its inverse may do
    better, and how many bits of a node's role it leaves open.

    \b
    Examples:
      tally mesh attack --nodes 200 --subscribers 20
      tally mesh attack --mu 0.5 --nu 0.1 --seeds 30 --json
      tally mesh attack --dial constant
    """
    from tallystick.sim.anonymity.survey import AttackSurvey, TopicPlan

    plan = TopicPlan(**{"seconds" if name == "play" else name: value for name, value in chosen.items()})
    if plan.subscribers + plan.publishers > plan.nodes:
        members = output.plural(plan.subscribers, "subscriber"), output.plural(plan.publishers, "publisher")
        raise Misuse(
            f"{' and '.join(members)} do not fit into {plan.nodes} nodes",
            hint="raise --nodes; those who only forward count too",
        )
    if plan.degree >= plan.nodes:
        raise Misuse(f"a node of {plan.nodes} has fewer than {plan.degree} neighbours", hint="lower --degree")
    with output.progress("meshes", seeds, show=show_progress) as advance:
        cost, findings = AttackSurvey(plan, seed).run(seeds, advance)
    tell(
        {"plan": plan, "seed": seed, "seeds": seeds, "cost": cost, "attackers": findings},
        *output.table(_rows(findings)),
        note=_sum_up(cost, findings),
    )


def _rows(findings: list[AttackFinding]) -> list[list[str]]:
    head = ["seeks", "attacker", "precision", "recall", "base rate", "names", "Eq. 5", "inverse", "bits"]
    rows = []
    for one in sorted(findings, key=lambda found: (found.seeks != "subscribers", -found.precision)):
        rates = [one.precision, one.recall, one.base_rate]
        rest = [one.accuracy, one.better, one.entropy]
        rows.append([one.seeks, one.attacker, *map(_show, rates), f"{one.named:.0f}", *map(_show, rest)])
    return [head, *rows]


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _sum_up(cost: TopicCost, findings: list[AttackFinding]) -> str:
    """What it costs, and the attacker who names the most subscribers with the fewest others."""
    best = max((one for one in findings if one.seeks == "subscribers"), key=lambda one: one.precision * one.recall)
    return (
        f"{cost.members:.0f} nodes carry it for {cost.subscribers:.0f} subscribers, {cost.messages:.0f} messages a "
        f"notification, {cost.hops:.1f} hops; best against subscribers: {best.attacker}, which finds {best.recall:.0%} "
        f"of them and is right in {best.precision:.0%}, where a guess is in {best.base_rate:.0%}"
    )
