"""`tally fabric`: switches that carry publications, as their operator sees them."""

from __future__ import annotations

import click

from tallystick.cli import fabric_member, fabric_show, fabric_switch, fabric_up


@click.group("fabric")
def command() -> None:
    """Run a fabric of switches, and see what it does.

    \b
    Examples:
      tally fabric up lab --trial ring --switches 5
      tally fabric switch --device 1 --port 1=eth1 --port 2=eth2
      tally fabric join brakes --publish --node-url http://127.0.0.1:7421 --home car
      tally fabric topology lab
      tally fabric rules lab --switch s1
      tally fabric trace lab 00112233445566778899aabbccddeeff --svg tree.svg
    """


for _one in (
    *(fabric_up.up, fabric_up.verify, fabric_switch.switch, fabric_show.topology, fabric_show.rules, fabric_show.trace),
    *(fabric_member.join, fabric_member.leave, fabric_member.status, fabric_member.directory),
):
    command.add_command(_one)
