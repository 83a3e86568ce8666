"""A switch as a P4Runtime server: any P4Runtime controller can program it (P4Runtime 1.4).

Arbitration, the one pipeline, writes with an error for each update, reads, packets in and out. Threat: whoever reaches
the port rules the switch. Off loopback it therefore speaks mutual TLS alone, under the operator's own roots. A port
that floods its controller is cut down to `PACKET_INS` of its own, and so silences no other.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from tallystick.carriers.fabric import p4_entities as entities
from tallystick.carriers.fabric.entries import FRAME_BYTES_MAX, DataPlane, PlaneStatistics
from tallystick.carriers.fabric.p4_channel import MESSAGE_BYTES_MAX, SwitchTls, listen
from tallystick.carriers.fabric.p4_entities import P4Refusal, switch_program
from tallystick.carriers.fabric.p4_messages import grpc, p4r, p4r_grpc, rpc_code, rpc_status
from tallystick.carriers.fabric.rules import CONTROLLER_PORT
from tallystick.carriers.fabric.switch_state import Arbitration, SwitchState
from tallystick.errors import Unavailable
from tallystick.runtime.router import Buckets, Rate
from tallystick.runtime.sources import Clock

STREAMS_MAX = 16  # controllers connected at once; each holds a thread
CALLS_MAX = 24  # those and all other calls at once; more are refused
WAITING_MAX = 4_096  # packet-ins for one controller that does not read
READ_ENTITIES = 1_000  # in one message of an answer
PACKET_INS = Rate(per_s=200, most=400)  # of one port


@dataclass(frozen=True, slots=True)
class SwitchStatistics:
    plane: PlaneStatistics
    entries: dict[str, int]
    packet_ins: int
    packet_ins_dropped: dict[int, int]  # by port: beyond its rate, or with nobody to hear


class _Stream(queue.Queue[Any]):
    """What one controller is to be told."""

    def tell(self, message: Any) -> bool:
        with suppress(queue.Full):
            self.put_nowait(message)
            return True
        return False


class SwitchServer(p4r_grpc.P4RuntimeServicer):
    def __init__(self, device: int, plane: DataPlane, clock: Clock, tls: SwitchTls | None = None) -> None:
        self.device = device
        self._plane, self._clock, self._tls = plane, clock, tls
        self._lock = threading.RLock()
        self._state, self._arbitration = SwitchState(plane), Arbitration[_Stream]()
        self._config: Any = None
        self._primary: _Stream | None = None
        self._buckets: Buckets[int] = Buckets(512)
        self._packet_ins, self._dropped = 0, dict[int, int]()
        options = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.so_reuseport", 0)]
        threads = ThreadPoolExecutor(CALLS_MAX, "p4runtime")
        self._server = grpc.server(threads, options=options, maximum_concurrent_rpcs=CALLS_MAX)
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self._server)

    def start(self, address: str = "127.0.0.1:0") -> int:
        """Serve, and say on which port. Raises `Misuse` for an address off loopback without TLS."""
        port = listen(self._server, address, self._tls)
        self._server.start()
        self._plane.start(self._packet_in)
        return port

    def close(self) -> None:
        """Stop serving, and take the data plane away."""
        for stream in list(self._arbitration.elections):
            stream.tell(None)
        self._server.stop(0.2).wait()
        self._plane.close()

    def statistics(self) -> SwitchStatistics:
        with self._lock:
            entries = {kind.value: len(table) for kind, table in self._plane.tables.items()}
            return SwitchStatistics(self._plane.statistics(), entries, self._packet_ins, dict(self._dropped))

    # --- packets ---

    def _packet_in(self, port: int, frame: bytes) -> None:
        """On the plane's thread alone, and behind no lock: a long write must not hold frames up."""
        self._packet_ins += 1
        packet = p4r.PacketIn(payload=frame, metadata=entities.port_metadata(port))
        primary = self._primary
        if not (self._is_within(port) and primary and primary.tell(p4r.StreamMessageResponse(packet=packet))):
            self._dropped[port] = self._dropped.get(port, 0) + 1

    def _is_within(self, port: int) -> bool:
        return self._buckets.charge(port, PACKET_INS, 1, self._clock.monotonic()) == 0

    def _packet_out(self, stream: _Stream, packet: Any) -> None:
        with self._lock:
            if stream is not self._primary:
                raise P4Refusal(rpc_code.PERMISSION_DENIED, "only the primary controller sends packets")
            port = entities.packet_port(packet)
            if port == CONTROLLER_PORT or len(packet.payload) > FRAME_BYTES_MAX:
                raise P4Refusal(rpc_code.OUT_OF_RANGE, "a port of a host or a link, and a frame that fits, expected")
            self._plane.send(port, packet.payload)

    # --- the service ---

    def StreamChannel(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        stream = _Stream(WAITING_MAX)
        with self._lock:
            if len(self._arbitration.elections) >= STREAMS_MAX:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {STREAMS_MAX} controllers at once")
            self._arbitration.elections[stream] = None
        context.add_callback(lambda: stream.tell(None))
        threading.Thread(target=self._listen, args=(stream, requests), daemon=True).start()
        try:
            while (message := stream.get()) is not None:
                if isinstance(message, P4Refusal):
                    _abort(context, message)
                yield message
        finally:
            with self._lock:
                del self._arbitration.elections[stream]
                self._tell_who_leads()

    def _listen(self, stream: _Stream, requests: Iterator[Any]) -> None:
        with suppress(Exception):  # the peer went: grpc raises what it likes
            for request in requests:
                kind = request.WhichOneof("update")
                try:
                    if kind == "arbitration":
                        self._arbitrate(stream, request.arbitration)
                    elif kind == "packet":
                        self._packet_out(stream, request.packet)
                    else:
                        raise P4Refusal(rpc_code.UNIMPLEMENTED, f"{kind}: not spoken here")
                except P4Refusal as refusal:
                    if kind == "arbitration":
                        stream.tell(refusal)  # ends the stream
                        return
                    error = p4r.StreamError(canonical_code=refusal.code, message=str(refusal))
                    if kind == "packet":
                        error.packet_out.packet_out.CopyFrom(request.packet)
                    stream.tell(p4r.StreamMessageResponse(error=error))
        stream.tell(None)

    def _arbitrate(self, stream: _Stream, asked: Any) -> None:
        self._check_device(asked)
        if asked.role.name or asked.role.id:
            raise P4Refusal(rpc_code.UNIMPLEMENTED, "there is one role")
        with self._lock:
            if stream in self._arbitration.elections:
                self._arbitration.claim(stream, entities.read_election(asked.election_id))
                self._tell_who_leads()

    def _tell_who_leads(self) -> None:
        primary = self._primary = self._arbitration.primary
        waiting = rpc_code.ALREADY_EXISTS if primary else rpc_code.NOT_FOUND
        election = entities.to_election(self._arbitration.greatest)
        for stream in (one for one, election in self._arbitration.elections.items() if election is not None):
            status = rpc_status.Status(code=rpc_code.OK if stream is primary else waiting)
            update = p4r.MasterArbitrationUpdate(device_id=self.device, election_id=election, status=status)
            stream.tell(p4r.StreamMessageResponse(arbitration=update))

    def Write(self, request: Any, context: grpc.ServicerContext) -> Any:
        faults = []
        with self._judged(request, context, is_writer=True, needs_program=True):
            if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
                raise P4Refusal(rpc_code.UNIMPLEMENTED, "updates are carried out one by one")
            for update in request.updates:
                try:
                    self._state.update(update.type, update.entity)
                    faults.append(p4r.Error(canonical_code=rpc_code.OK))
                except P4Refusal as refusal:
                    faults.append(p4r.Error(canonical_code=refusal.code, message=str(refusal)))
        if said := next((fault.message for fault in faults if fault.canonical_code), ""):
            status = rpc_status.Status(code=rpc_code.UNKNOWN, message=f"updates were refused, the first since {said}")
            for fault in faults:
                status.details.add().Pack(fault)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.UNKNOWN, status.message)
        return p4r.WriteResponse()

    def Read(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with self._judged(request, context, needs_program=True):
            found = [one for entity in request.entities for one in self._state.read(entity)]
            if self._primary and (unmatched := self._plane.statistics().unmatched):
                self._primary.tell(entities.tell_unmatched(unmatched))
        for start in range(0, len(found), READ_ENTITIES):
            yield p4r.ReadResponse(entities=found[start : start + READ_ENTITIES])

    def SetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        actions = p4r.SetForwardingPipelineConfigRequest
        program, config = switch_program().config, request.config
        with self._judged(request, context, is_writer=True):
            is_ours = config.p4info == program.p4info and config.p4_device_config == program.p4_device_config
            if request.action == actions.COMMIT or not is_ours:
                raise P4Refusal(rpc_code.INVALID_ARGUMENT, "this switch runs one program, and no other")
            if request.action == actions.VERIFY_AND_COMMIT:
                self._state.clear()
            if request.action in (actions.VERIFY_AND_COMMIT, actions.RECONCILE_AND_COMMIT):
                self._config = config
        return p4r.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        wanted = p4r.GetForwardingPipelineConfigRequest
        with self._judged(request, context):
            answer = p4r.GetForwardingPipelineConfigResponse(config=self._config)
        if request.response_type not in (wanted.ALL, wanted.P4INFO_AND_COOKIE):
            answer.config.ClearField("p4info")
        if request.response_type not in (wanted.ALL, wanted.DEVICE_CONFIG_AND_COOKIE):
            answer.config.ClearField("p4_device_config")
        return answer

    def Capabilities(self, request: Any, context: grpc.ServicerContext) -> Any:
        return p4r.CapabilitiesResponse(p4runtime_api_version="1.4.1")

    @contextmanager
    def _judged(
        self, request: Any, context: grpc.ServicerContext, *, is_writer: bool = False, needs_program: bool = False
    ) -> Iterator[None]:
        """A refusal inside ends the call with its code."""
        try:
            with self._lock:
                self._check_device(request)
                if is_writer:
                    self._arbitration.check(entities.read_election(request.election_id))
                if needs_program and self._config is None:
                    raise P4Refusal(rpc_code.FAILED_PRECONDITION, "no controller has set the pipeline yet")
                yield
        except P4Refusal as refusal:
            _abort(context, refusal)

    def _check_device(self, request: Any) -> None:
        if request.device_id != self.device:
            raise P4Refusal(rpc_code.NOT_FOUND, f"this is device {self.device}")


def _abort(context: grpc.ServicerContext, refusal: P4Refusal) -> NoReturn:
    codes = {code.value[0]: code for code in grpc.StatusCode}
    context.abort(codes[refusal.code], str(refusal))
    raise Unavailable("the call has ended")
