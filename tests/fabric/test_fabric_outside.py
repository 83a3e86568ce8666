"""Clients of P4Runtime that nobody here wrote program our switch: finsy, and p4runtime-shell."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import finsy
import lab
import plane_world
import pytest

from engines import p4shell
from engines.cache import Missing, cache_folder
from tallystick.carriers.fabric.p4_server import SwitchServer
from tallystick.carriers.fabric.route import RouteHeader, control, publication
from tallystick.runtime.sources import SystemClock

CACHE = cache_folder()  # read before the suite moves HOME
PROGRAM = Path(str(resources.files("tallystick.carriers.fabric").joinpath("program")))
P4INFO, COMPILED = PROGRAM / "pubsub.p4info.txtpb", PROGRAM / "pubsub.json"
DEVICE, LABEL = 33, (0xABCDEF).to_bytes(16)

Switch = tuple[SwitchServer, str, dict[int, lab.Tap]]


@pytest.fixture
def switch() -> Iterator[Switch]:
    plane, taps, close = plane_world.on_datagrams([1, 2, 3])
    server = SwitchServer(DEVICE, plane, SystemClock())
    yield server, f"127.0.0.1:{server.start()}", taps
    server.close()
    close()


def check_frames(taps: dict[int, lab.Tap]) -> None:
    taps[1].send(publication(RouteHeader(6, LABEL), b"hello"))
    for port, after in ((2, 0x22), (3, 0x33)):
        assert taps[port].hear() == publication(RouteHeader(6, after.to_bytes(16)), b"hello")


def test_finsy_programs_our_switch(switch: Switch) -> None:
    server, address, taps = switch

    async def program() -> None:
        options = finsy.SwitchOptions(p4info=P4INFO, p4blob=COMPILED, device_id=DEVICE)
        async with finsy.Switch("outside", address, options) as outside:
            match = {"epoch": 6, "label": 0xABCDEF}
            relabelled = [
                finsy.P4TableEntry(
                    "next_labels",
                    match=finsy.Match(**match, port=port),
                    action=finsy.Action("relabel", next=after),
                )
                for port, after in ((2, 0x22), (3, 0x33))
            ]
            group = finsy.P4MulticastGroupEntry(4, replicas=[2, 3])
            entry, again = (
                finsy.P4TableEntry(
                    "publications", match=finsy.Match(**match), action=finsy.Action("multicast", group=4)
                )
                for _ in range(2)
            )
            await outside.write([*(+one for one in relabelled), +group, +entry])
            with pytest.raises(finsy.P4ClientError) as refused:
                await outside.write([+again])
            assert [one.canonical_code.name for one in refused.value.details.values()] == ["ALREADY_EXISTS"]
            await asyncio.to_thread(check_frames, taps)

            read = [one async for one in outside.read(finsy.P4TableEntry())]  # type: ignore[attr-defined]
            assert len(read) == 3
            counters = [one async for one in outside.read(finsy.P4DirectCounterEntry("publication_counter"))]  # type: ignore[attr-defined]
            assert [(one.packet_count, one.byte_count) for one in counters] == [(1, 39)]
            groups = [one async for one in outside.read(finsy.P4MulticastGroupEntry())]  # type: ignore[attr-defined]
            assert [one.multicast_group_id for one in groups] == [4]

            taps[2].send(control(b"subscribe"))
            async for packet in outside.read_packets():
                assert (packet["ingress_port"], packet.payload) == (2, control(b"subscribe"))
                break
            await outside.write([finsy.P4PacketOut(control(b"answer"), egress_port=3, pad=0)])
            assert await asyncio.to_thread(taps[3].hear) == control(b"answer")
            await outside.delete_all()

    asyncio.run(asyncio.wait_for(program(), 30))
    assert set(server.statistics().entries.values()) == {0}


@pytest.mark.long
def test_p4runtime_shell_programs_our_switch(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_ENGINES", str(CACHE))
    try:
        python = p4shell.fetch()
    except Missing as missing:
        pytest.skip(str(missing))
    _server, address, taps = switch
    command = [
        str(python),
        str(Path(__file__).parent / "shell_client.py"),
        address,
        str(DEVICE),
        str(P4INFO),
        str(COMPILED),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        killer = threading.Timer(60, client.kill)
        killer.start()
        said = []
        while (line := client.stdout.readline()) and line != "ready\n":
            said.append(line.strip())
        assert taps[1].hear() == bytes.fromhex("030000009004020000009004900377")
        check_frames(taps)
        taps[3].send(control(b"subscribe"))
        client.stdin.write("\n")
        client.stdin.flush()
        said += client.stdout.read().splitlines()
        killer.cancel()
    assert said == [
        "again: True",
        "read: [1, 2]",
        "group: [2, 3]",
        "counted: [1]",
        f"in: {control(b'subscribe').hex()} 03",
    ]
    assert client.returncode == 0
