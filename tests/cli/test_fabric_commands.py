"""`tally fabric switch` and `rules`."""

from __future__ import annotations

import signal
import socket

import pytest
from commands import done, refused, running

from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
from tallystick.carriers.fabric.route import RouteHeader, publication
from tallystick.carriers.fabric.rules import FlowRule
from tallystick.node.processes import free_ports

LABEL, NEXT = b"l" * 16, b"n" * 16


def test_a_switch_runs_takes_rules_and_shows_them() -> None:
    host, subscriber = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    ports = []
    for number, (end, free) in enumerate(zip((host, subscriber), free_ports(2), strict=True), start=1):
        end.bind(("127.0.0.1", 0))
        end.connect(("127.0.0.1", free))
        ports += ["--port", f"{number}=127.0.0.1:{free}/127.0.0.1:{end.getsockname()[1]}"]
    switch = ("fabric", "switch", "--device", 5, "--plane", "datagrams", "--listen", "127.0.0.1:0")
    with running(*switch, *ports) as (process, told):
        assert told["plane"] == "datagrams (an emulation)"
        where = (told["address"], "--device", 5)
        assert refused(4, "fabric", "rules", *where) == ["error: no controller has set the pipeline yet"]
        controller = P4RuntimeSwitch("five", 5, told["address"])
        controller.lead(1)
        assert "drops every publication" in done("fabric", "rules", *where).err
        controller.write({(3, LABEL): FlowRule(3, LABEL, ((2, NEXT),))})
        host.send(publication(RouteHeader(3, LABEL), b"row"))
        subscriber.settimeout(10)
        assert subscriber.recv(2_048) == publication(RouteHeader(3, NEXT), b"row")
        assert done("fabric", "rules", *where, "--json").json == [
            {"epoch": 3, "label": LABEL.hex(), "out": [{"port": 2, "label": NEXT.hex()}], "packets": 1, "bytes": 37}
        ]
        shown = done("fabric", "rules", *where).out
        assert shown == f"3  {LABEL.hex()}  1 packets  37 bytes  port 2 as {NEXT.hex()}\n"
        controller.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    host.close()
    subscriber.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "1"], "NUMBER=INTERFACE expected"),
        (["--port", "510=eth0"], "0 to 509"),
        (["--port", "1=a", "--port", "1=b"], "each number"),
        (["--port", "1=lo", "--plane", "packet"], "'lo' has an address"),
        (["--port", "1=nowhere0", "--plane", "packet"], "no interface 'nowhere0'"),
        (["--port", "1=127.0.0.1:1", "--plane", "datagrams"], "this end's address and the other's"),
        (["--port", "1=127.0.0.1:0/127.0.0.1:9", "--plane", "datagrams", "--listen", "0.0.0.0:0"], "TLS alone"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str) -> None:
    assert said in refused(2, "fabric", "switch", "--device", 1, *arguments)[0]
