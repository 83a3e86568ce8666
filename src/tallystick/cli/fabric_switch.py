"""`tally fabric switch`: a switch by itself, for a controller elsewhere."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, machine, on_signal
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.carriers.fabric.p4_channel import SwitchTls

PLANES = ("ebpf", "packet", "datagrams")

tls_options = output.options(
    click.option("--tls-key", type=KNOWN_FILE, help="PEM file; off loopback all three are needed."),
    click.option("--tls-certificate", type=KNOWN_FILE, help="PEM file."),
    click.option("--tls-roots", type=KNOWN_FILE, help="PEM file: whose certificates the other side may show."),
)


@click.command("switch")
@click.option("--device", type=click.IntRange(1, 2**64 - 1), required=True, help="The switch's number in the fabric.")
@click.option("--port", "ports", multiple=True, required=True, help="NUMBER=INTERFACE, or NUMBER=HOST:PORT/HOST:PORT.")
@output.default_option("--plane", type=click.Choice(PLANES), default="ebpf", help="What moves the frames.")
@output.default_option("--listen", default="127.0.0.1:9559", help="Where controllers reach it, over P4Runtime.")
@click.option("--even-if-used", is_flag=True, help="Take interfaces that have an address or a default route, too.")
@tls_options
@output.json_option
def switch(
    device: int,
    ports: tuple[str, ...],
    plane: str,
    listen: str,
    even_if_used: bool,
    tls_key: Path | None,
    tls_certificate: Path | None,
    tls_roots: Path | None,
    tell: output.Tell,
) -> None:
    """Run a switch until SIGINT or SIGTERM. It forwards nothing until a controller has told it what.

    All that arrives on its interfaces and is not the fabric's is dropped, by the kernel (ebpf) or unseen (packet).
    `datagrams` is an emulation for machines where neither is allowed: each port is this end's address and the other's.

    \b
    Examples:
      tally fabric switch --device 1 --port 1=eth1 --port 2=eth2
      tally fabric switch --device 2 --plane datagrams --port 1=127.0.0.1:7001/127.0.0.1:7002
    """
    from tallystick.carriers.fabric.p4_server import SwitchServer
    from tallystick.engines.fabric import SwitchPlan

    tls, plan = read_tls(tls_key, tls_certificate, tls_roots), SwitchPlan("", device, listen, _numbered(ports), plane)
    server = SwitchServer(device, plan.make_plane(even_if_used=even_if_used), machine().clock, tls=tls)
    is_over = threading.Event()
    on_signal(is_over.set)
    try:
        address = f"{listen.rpartition(':')[0]}:{server.start(listen)}"
        counted = server.statistics()
        told = {"device": device, "address": address, "plane": counted.plane.kind}
        tell(told, f"switch {device}  {address}  {counted.plane.kind}")
        is_over.wait()
    finally:
        server.close()


def _numbered(ports: tuple[str, ...]) -> dict[int, str]:
    from tallystick.wire import is_number

    found: dict[int, str] = {}
    for one in ports:
        number, _, name = one.partition("=")
        if not (is_number(number) and int(number) <= 509 and name) or int(number) in found:
            raise Misuse(f"--port {one}: NUMBER=INTERFACE expected, each number of 0 to 509 once")
        found[int(number)] = name
    return found


def read_tls(key: Path | None, certificate: Path | None, roots: Path | None) -> SwitchTls | None:
    from tallystick.carriers.fabric.p4_channel import SwitchTls

    if key and certificate and roots:
        return SwitchTls(key.read_bytes(), certificate.read_bytes(), roots.read_bytes())
    if key or certificate or roots:
        raise Misuse("key, certificate and roots are needed together")
    return None
