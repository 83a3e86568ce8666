"""A whole fabric on this machine: P4Runtime switches over data planes, wires between them, hosts, and a controller that
drives them over gRPC. Planes are the kernel's on veth pairs in namespaces, or the emulation on socket pairs.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

import lab
from fabric_world import KEY

from tallystick.carriers.fabric.blaming import BlameLimits, VerifyingHost
from tallystick.carriers.fabric.configurator import ConfiguratorSettings
from tallystick.carriers.fabric.control import REQUEST_KIND, split_message
from tallystick.carriers.fabric.controller import ControllerSettings, FabricController
from tallystick.carriers.fabric.ebpf_plane import EbpfPlane
from tallystick.carriers.fabric.frame_plane import DATAGRAMS, FramePlane
from tallystick.carriers.fabric.leases import ControllerLease
from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
from tallystick.carriers.fabric.p4_server import SwitchServer
from tallystick.carriers.fabric.requests import FlowAnswer, FlowRequest, read_frame, wrap
from tallystick.carriers.fabric.route import RouteHeader, control, publication, read_control, read_publication
from tallystick.carriers.fabric.topology import ProbeLimits, is_probe, prove
from tallystick.carriers.fabric.trees import PortPlace, TreeKind, Wiring
from tallystick.errors import Malformed
from tallystick.runtime.effects import Arrived, Send
from tallystick.runtime.sources import SystemClock, SystemEntropy

OWNER = "ab" * 16


class StackHosts:
    """All hosts: they answer probes and note what they hear, with the time. Those at a port of this number verify."""

    def __init__(self, wires: dict[PortPlace, socket.socket], verifying: int = 0) -> None:
        self.wires = wires
        self._verifiers = {place: VerifyingHost() for place in wires if place.port == verifying}
        self.heard: dict[PortPlace, list[tuple[float, RouteHeader, bytes]]] = {place: [] for place in wires}
        self._selector = selectors.DefaultSelector()
        for place, wire in wires.items():
            wire.setblocking(False)
            self._selector.register(wire, selectors.EVENT_READ, place)
        self._is_stopping = self.is_deaf = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping:
            for key, _ in self._selector.select(0.05):
                with suppress(BlockingIOError, OSError):
                    for _ in range(64):
                        self._hear(key.data, self.wires[key.data].recv(65_536))

    def _hear(self, place: PortPlace, frame: bytes) -> None:
        if self.is_deaf:
            return
        if place in self._verifiers:
            for effect in self._verifiers[place].receive(Arrived("wire", frame), time.time()):
                if isinstance(effect, Send):
                    self.wires[place].send(effect.message)
            return
        try:
            payload = read_control(frame)
        except Malformed:
            with suppress(Malformed):
                self.heard[place].append((time.monotonic(), *read_publication(frame)))
            return
        if is_probe(payload):
            with suppress(OSError):
                self.wires[place].send(control(prove(payload)))

    def close(self) -> None:
        self._is_stopping = True
        self._thread.join()
        for wire in self.wires.values():
            wire.close()


def altering(far: socket.socket) -> socket.socket:
    """The other end of a wire on which somebody alters every publication, both ways."""
    inner, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    far.setblocking(True)

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while frame := source.recv(65_536):
                try:
                    route, payload = read_publication(frame)
                    frame = publication(route, payload[:-1] + bytes([payload[-1] ^ 1]))
                except Malformed:
                    pass
                sink.send(frame)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()

    for ends in ((far, inner), (inner, far)):
        threading.Thread(target=pump, args=ends, daemon=True).start()
    return outer


class FabricStack:
    """`hosts` are ports at which hosts are plugged in, `altered` a link port behind which (in the emulation) somebody
    alters every publication, `verifying` the number of the ports of verifying hosts. The controller runs until
    `close`."""

    def __init__(
        self,
        wiring: Wiring,
        hosts: Iterable[PortPlace],
        plane: str = "datagrams",
        tree: TreeKind = TreeKind.SPANNING,
        altered: PortPlace | None = None,
        verifying: int = 0,
    ) -> None:
        self.wiring, self.plane_kind, self.altered = wiring, plane, altered
        self.answers: dict[bytes, FlowAnswer] = {}
        self._namespaces: dict[str, lab.Namespace] = {}
        self._outside: lab.Namespace | None = None
        ends = self._socket_pairs(hosts) if plane == "datagrams" else self._veth_pairs(hosts)
        self.hosts = StackHosts(ends, verifying)
        self.servers: dict[str, SwitchServer] = {}
        self.drivers = {}
        for device, name in enumerate(sorted(wiring.switches), 1):
            server = SwitchServer(device, self._plane(name), SystemClock())
            self.servers[name] = server
            self.drivers[name] = P4RuntimeSwitch(name, device, f"127.0.0.1:{server.start()}")
        self.lease = ControllerLease(1, b"one", 10**15)
        settings = ControllerSettings(
            ports={name: sorted(self._ports[name]) for name in wiring.switches},
            dispatchers={OWNER},
            configurator=ConfiguratorSettings(gather_s=0.6, tree=tree),
            probes=ProbeLimits(probe_s=0.25, expiry_s=3.0, lost_s=2.7),
            step_s=0.02,
            verifying={place.switch: place.port for place in ends if place.port == verifying},
            blame=BlameLimits(look_s=0.6, settle_s=0.3),
        )
        lease = self.lease
        self.controller = FabricController(
            KEY, self.drivers, lambda _: lease.fence, self, SystemClock(), SystemEntropy(), settings
        )
        self.controller.start()
        assert lab.eventually(lambda: self.controller.statistics().links == len(wiring.links), 60)
        assert lab.eventually(lambda: all(self.controller.topology.is_host(one, time.time()) for one in ends), 60)
        piece = split_message(REQUEST_KIND, bytes.fromhex(OWNER), bytes(256), 1_400)[0]
        for wire in ends.values():  # each host has asked the dispatcher for something
            wire.send(control(piece))
        time.sleep(0.7)  # as long as a new leader waits for what dispatchers repeat

    # --- wires ---

    def _socket_pairs(self, hosts: Iterable[PortPlace]) -> dict[PortPlace, socket.socket]:
        self._wires: dict[str, dict[int, socket.socket]] = {name: {} for name in self.wiring.switches}
        ends = {}
        pairs = [(link.a, link.b) for link in self.wiring.links] + [(place, None) for place in hosts]
        for one, other in pairs:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if self.altered is not None and self.altered in (one, other):
                far = altering(far)
            near.setblocking(False)
            far.setblocking(False)
            self._wires[one.switch][one.port] = near
            if other is None:
                ends[one] = far
            else:
                self._wires[other.switch][other.port] = far
        self._ports = {name: set(wires) for name, wires in self._wires.items()}
        return ends

    def _veth_pairs(self, hosts: Iterable[PortPlace]) -> dict[PortPlace, socket.socket]:
        self._namespaces = {name: lab.Namespace() for name in self.wiring.switches}
        self._outside = lab.Namespace()
        self._ports = {name: set[int]() for name in self.wiring.switches}
        for link in self.wiring.links:
            one, other = link.a, link.b
            lab.connect(self._namespaces[one.switch], f"p{one.port}", self._namespaces[other.switch], f"p{other.port}")
            self._ports[one.switch].add(one.port)
            self._ports[other.switch].add(other.port)
        ends = {}
        for place in hosts:
            tap = f"{place.switch}-{place.port}"
            lab.connect(self._namespaces[place.switch], f"p{place.port}", self._outside, tap)
            ends[place] = lab.Tap.on(self._outside, tap).wire
            self._ports[place.switch].add(place.port)
        return ends

    def _plane(self, name: str) -> EbpfPlane | FramePlane:
        ports = self._ports[name]
        if self.plane_kind == "datagrams":
            return FramePlane(DATAGRAMS, self._wires[name])
        interfaces = {port: f"p{port}" for port in ports}
        make = FramePlane.on_interfaces if self.plane_kind == "packet" else EbpfPlane
        plane: EbpfPlane | FramePlane = self._namespaces[name].run(lambda: make(interfaces))
        return plane

    def cut(self, place: PortPlace, *, mended: bool = False) -> None:
        """Take a link down, or up again."""
        lab.set_up(self._namespaces[place.switch], f"p{place.port}", up=mended)

    # --- the dispatcher ---

    def send(self, owner: str, data: bytes) -> None:
        said = read_frame(data)
        if isinstance(said, FlowAnswer):
            self.answers[said.identifier] = said

    def repeat(self) -> None:
        pass

    def ask(self, *requests: FlowRequest) -> None:
        """And wait for all answers."""
        for one in requests:
            self.answers.pop(one.identifier, None)
        for one in requests:
            self.controller.receive(OWNER, wrap(one))
        assert lab.eventually(lambda: all(one.identifier in self.answers for one in requests), 60)

    # --- publications ---

    def publish(self, flow: bytes, place: PortPlace, payload: bytes) -> None:
        answer = self.answers[flow]
        [(_, first)] = answer.send
        frame = publication(RouteHeader(answer.epoch, first), payload)
        with suppress(BlockingIOError, OSError):
            self.hosts.wires[place].send(frame)

    def reached(self, flow: bytes, place: PortPlace, within_s: float = 3.0) -> set[PortPlace]:
        """Where one frame arrives, and how often: once. It is waited for until no more of it came for a while."""
        payload = time.monotonic_ns().to_bytes(8) * 8
        self.publish(flow, place, payload)
        end = time.monotonic() + within_s
        found: list[PortPlace] = []
        before = -1
        while len(found) != before and time.monotonic() < end:
            before = len(found)
            time.sleep(0.2)
            found = [
                where
                for where, heard in self.hosts.heard.items()
                for _, _, what in list(heard)
                if what[: len(payload)] == payload
            ]
        assert len(found) == len(set(found)), "a frame arrived twice"
        return set(found)

    def close(self) -> None:
        self.controller.stop()
        for driver in self.drivers.values():
            driver.close()
        for server in self.servers.values():
            server.close()
        self.hosts.close()
        for namespace in (*self._namespaces.values(), self._outside):
            if namespace is not None:
                namespace.close()
