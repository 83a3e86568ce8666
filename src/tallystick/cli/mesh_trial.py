"""`tally mesh up`: nodes of a mesh on this machine that only forward, for trials and tests."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, machine, on_signal, require_instance

NODES = 10


@click.command("up")
@folder_argument
@click.option("--nodes", type=click.IntRange(2, 200), help=f"How many, the first time; by default {NODES}.")
@output.default_option(
    "--dial", type=click.Choice(["off", "padded", "constant"]), default="padded", help="How much their links hide."
)
@output.default_option("--beat", type=click.FloatRange(0.05, 60), default=1.0, help="Seconds from link beat to beat.")
@output.json_option
def up(folder: Path, nodes: int | None, dial: str, beat: float, tell: output.Tell) -> None:
    """Run nodes of a mesh that only forward, for trials: in one process, until SIGINT or SIGTERM.

    The instance in DIR must run (tally up). Each node is a principal of its own, enrolled the first time. Other nodes
    find them by the entries in DIR/mesh/contacts.

    \b
    Examples:
      tally mesh up fleet
      tally mesh up fleet --nodes 50 --dial constant
    """
    import asyncio
    from dataclasses import replace

    from tallystick.carriers.mesh.link_layer import Dial
    from tallystick.carriers.mesh.mesh_node import MeshSettings
    from tallystick.carriers.mesh.pace import paced
    from tallystick.carriers.mesh.station import MeshOutside
    from tallystick.engines.mesh import ForwarderCrew, TrialMesh
    from tallystick.node.instance import claim
    from tallystick.runtime.logs import configure_logs

    require_instance(folder)
    configure_logs(json=False, level="warning")
    trial = TrialMesh.prepare(folder, nodes or (None if (folder / "mesh").exists() else NODES))
    with claim(folder / "mesh"):
        output.note(f"{output.plural(len(trial.ports), 'node')}: asking the authority for their places …")
        kits = trial.kits(*machine(), lambda number: None)
        settings = MeshSettings()
        settings = paced(replace(settings, mesh=replace(settings.mesh, beat_s=beat)))
        crew = ForwarderCrew.gather(kits, trial.ports, MeshOutside(dial=Dial[dial.upper()], settings=settings))
        trial.contacts_file.write_text(crew.contacts + "\n")
        on_signal(crew.stop)
        addresses = [one.entry.address for one in crew.stations]
        tell({"nodes": addresses, "contacts": str(trial.contacts_file)}, *addresses)
        member = f"--serves PRINCIPAL --contacts {trial.contacts_file}"
        for line in (
            f"tally node add {folder} car-node --carrier mesh://city {member}",
            "tally up car-node --node-only",
            "tally mesh join brakes --publish --node-url http://… --home car",
        ):
            output.note(f"next: {line}")
        asyncio.run(crew.run(lambda: trial.renew(crew, *machine())))
        output.note("ended")
