"""`tally fabric up`: the switches of this machine and their controller; `verify`: a verifying host at one of them."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, machine, on_signal


@click.command("up")
@folder_argument
@click.option("--trial", type=click.Choice(["line", "ring", "tree"]), help="Make a fabric of emulated switches first.")
@output.default_option("--switches", type=click.IntRange(1, 64), default=4, help="Of a trial.")
@output.default_option("--hosts", type=click.IntRange(1, 64), default=2, help="Host ports at each switch of a trial.")
@output.json_option
def up(folder: Path, trial: str | None, switches: int, hosts: int, tell: output.Tell) -> None:
    """Run the switches that DIR/fabric.toml names, and a controller, until SIGINT or SIGTERM.

    Switches without a plane run elsewhere, and are driven at their address. Several controllers may share DIR: one
    leads, by a lease. The switches of a trial are an emulation over datagrams, for which nobody needs privileges.

    \b
    Examples:
      tally fabric up lab --trial ring --switches 5
      tally fabric up lab
    """
    from tallystick.engines.fabric import FabricCrew, make_trial
    from tallystick.runtime.logs import configure_logs

    configure_logs(json=False, level="warning")
    if trial is not None:
        make_trial(folder, trial, switches, hosts)
    crew = FabricCrew(folder, *machine())
    try:
        on_signal(crew.stop)
        told = [
            {"switch": one.name, "address": one.address, "plane": one.plane or "elsewhere", "ports": len(one.ports)}
            for one in crew.file.switches
        ]
        rows = [[str(value) for value in one.values()] for one in told]
        tell({"switches": told}, *output.table(rows), note=f"next: tally fabric topology {folder}")
        crew.run()
    finally:
        crew.close()
    output.note("ended")


@click.command("verify")
@click.argument("interface", metavar="packet:NAME|datagrams:HERE>THERE")
@output.json_option
def verify(interface: str, tell: output.Tell) -> None:
    """Run a verifying host until SIGINT or SIGTERM, at a port that `verifying` in the controller's fabric.toml names.

    Where a subscriber complains of altered frames the controller lets such hosts get them too, one switch after the
    other, and hears which copies came. They need no key.

    \b
    Examples:
      tally fabric verify packet:eth9
      tally fabric verify "datagrams:127.0.0.1:7001>127.0.0.1:7002"
    """
    from tallystick.carriers.fabric.blaming import VerifyingHost
    from tallystick.carriers.fabric.host_station import HostOutside
    from tallystick.runtime.socket_role import SocketRole

    running = SocketRole(VerifyingHost(), HostOutside(interface).open(), machine().clock, lambda _: None)
    is_over = threading.Event()
    on_signal(is_over.set)
    try:
        tell({"interface": interface}, f"verifying host  {interface}")
        is_over.wait()
    finally:
        running.stop()
