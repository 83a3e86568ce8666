"""`tally mesh`: the anonymous mesh, as its members see it."""

from __future__ import annotations

import click

from tallystick.cli import mesh_attack, mesh_keys, mesh_member, mesh_trial, mesh_updates


@click.group("mesh")
def command() -> None:
    """Take part in a mesh that hides who publishes and who subscribes.

    \b
    Examples:
      tally mesh up fleet --nodes 50
      tally mesh join brakes --publish --home car
      tally mesh status --home car
      tally mesh keys brakes --home reader
      tally mesh updates brakes --over mesh-keys --home owner
      tally mesh terms brakes --k-min 20 --home owner
      tally mesh attack --nodes 200 --subscribers 20
    """


_MEMBERS = mesh_member.join, mesh_member.leave, mesh_member.status
_OWNERS = mesh_keys.keys, mesh_keys.terms, mesh_updates.updates
for _one in (mesh_trial.up, *_MEMBERS, *_OWNERS, mesh_attack.attack):
    command.add_command(_one)
