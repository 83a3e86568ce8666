"""The controller's side of one switch: flow rules over P4Runtime, to our switch or to any other target.

Threat: a write that fails in the middle leaves a rule that leads to nowhere, or to the wrong label. Invariant: after
every `write` the switch's tables are those of before or those of after; where the switch allows neither, the error
says what is in force. Nothing is trusted that was not read back after a failure. A successor reads the tables and never
pushes the pipeline again to a switch that runs it, since that would empty them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from tallystick.carriers.fabric import p4_entities as entities
from tallystick.carriers.fabric.entries import Entries, EntryChange, RuleEntries, SwitchEntry, key_of
from tallystick.carriers.fabric.p4_channel import SwitchTls, open_channel
from tallystick.carriers.fabric.p4_entities import switch_program
from tallystick.carriers.fabric.p4_messages import grpc, p4r, p4r_grpc, rpc_code
from tallystick.carriers.fabric.rules import (
    NotInForce,
    PacketIn,
    RuleChanges,
    RuleKey,
    RuleTable,
    Superseded,
    changed,
)
from tallystick.errors import Refused, TallystickError, Unavailable

CALL_S = 30.0  # a write of a thousand entries takes a fraction of a second
WRITE_S = 2.0  # and a switch that hangs holds withdrawals at others up no longer
COUNTERS_S = 5.0  # for those of a full table
UPDATES_MAX = 1_000  # in one request


class P4RuntimeSwitch:
    """A `SwitchDriver`. Its calls are for one thread at a time; packet-ins come on a thread of its own."""

    def __init__(self, name: str, device: int, address: str, tls: SwitchTls | None = None) -> None:
        """Raises `Misuse` for an address off loopback without TLS."""
        self.name, self.device = name, device
        self._channel = open_channel(address, tls)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._election: Any = None
        self._packet_in: PacketIn = lambda port, frame: None
        self._requests: queue.Queue[Any] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._stream: Any = None
        self._held: RuleEntries | None = None  # None: not known
        self._unmatched: Mapping[int, int] = {}

    def lead(self, election: int) -> None:
        """As `SwitchDriver.lead`; then the switch runs the program, and its tables have been read."""
        self._election = entities.to_election(election)
        self._answers = queue.Queue()  # what the switch said of others' claims, before this one, is over
        if self._stream is None or not self._stream.is_active():
            self._open_stream()
        claim = p4r.MasterArbitrationUpdate(device_id=self.device, election_id=self._election)
        self._requests.put(p4r.StreamMessageRequest(arbitration=claim))
        answer = self._wait_for_answer(election)
        if answer.status.code != rpc_code.OK:
            raise Superseded(f"switch {self.name}: a controller with a greater number leads")
        self._set_pipeline()
        self.read()

    def _open_stream(self) -> None:
        """Each has queues of its own: what a switch that went was to be told is not for the one that came back."""
        self._requests, self._answers, self._unmatched = queue.Queue(), queue.Queue(), {}
        self._stream = self._stub.StreamChannel(iter(self._requests.get, None))
        whose = (self._stream, self._requests)
        threading.Thread(target=self._listen, args=whose, name=f"p4 {self.name}", daemon=True).start()

    def _wait_for_answer(self, election: int) -> Any:
        """The switch's word on our claim: one that names a number as great as ours."""
        while True:
            answer = None
            with suppress(queue.Empty):
                answer = self._answers.get(timeout=CALL_S)
            if answer is None:
                self._stream = None
                raise Unavailable(f"switch {self.name} does not answer")
            if entities.read_election(answer.election_id) >= election:
                return answer

    def _listen(self, stream: Any, requests: queue.Queue[Any]) -> None:
        with suppress(grpc.RpcError):  # the switch went
            for message in stream:
                kind = message.WhichOneof("update")
                with suppress(Refused):  # a switch that says no port
                    if kind == "arbitration":
                        self._answers.put(message.arbitration)
                    elif kind == "packet":
                        self._packet_in(entities.packet_port(message.packet), message.packet.payload)
                    elif kind == "other":
                        self._unmatched = entities.read_unmatched(message.other)
        requests.put(None)
        if stream is self._stream:
            self._answers.put(None)

    def _set_pipeline(self) -> None:
        config = switch_program().config
        asks, sets = p4r.GetForwardingPipelineConfigRequest, p4r.SetForwardingPipelineConfigRequest
        request = asks(device_id=self.device, response_type=asks.COOKIE_ONLY)
        with suppress(Unavailable):  # some targets refuse the question while they run nothing
            held = self._call(self._stub.GetForwardingPipelineConfig, request)
            if held.config.cookie == config.cookie:
                return
        request = sets(device_id=self.device, election_id=self._election, action=sets.VERIFY_AND_COMMIT, config=config)
        self._call(self._stub.SetForwardingPipelineConfig, request)

    def write(self, changes: RuleChanges) -> None:
        before = dict(self._known().rules)
        try:
            self._write(changes)
        except TallystickError as error:
            raise self._undone(before, error) from error

    def _write(self, changes: RuleChanges) -> None:
        for stage in self._known().change(changes):  # a target may carry out one request in any order
            for start in range(0, len(stage), UPDATES_MAX):
                updates = [_update(change) for change in stage[start : start + UPDATES_MAX]]
                request = p4r.WriteRequest(device_id=self.device, election_id=self._election, updates=updates)
                self._call(self._stub.Write, request, WRITE_S)

    def _undone(self, before: RuleTable, error: TallystickError) -> TallystickError:
        """The error to raise once the switch is as it was, as far as it lets us."""
        self._held = None
        if isinstance(error, Superseded | NotInForce):
            return error
        with suppress(TallystickError):
            self._write(changed(self._known().rules, before))
        try:
            in_force = self.read()
        except TallystickError:
            return NotInForce(f"switch {self.name}: {error}; what is in force there is not known", None)
        return NotInForce(f"switch {self.name}: {error}", in_force)

    def read(self) -> RuleTable:
        self._held = None
        return dict(self._known().rules)

    def _known(self) -> RuleEntries:
        """What stands in the tables, which are read where that is not known."""
        if self._held is not None:
            return self._held
        engine = p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry())
        wanted = [p4r.Entity(table_entry=p4r.TableEntry(table_id=one)) for one in switch_program().tables.values()]
        found = self._read([*wanted, p4r.Entity(packet_replication_engine_entry=engine)])
        self._held = RuleEntries([entities.from_entity(entity) for entity in found])
        return self._held

    def counters(self) -> Mapping[RuleKey, tuple[int, int]]:
        table = switch_program().tables[Entries.PUBLICATIONS]
        asked = p4r.Entity(table_entry=p4r.TableEntry(table_id=table, counter_data=p4r.CounterData()))
        found = ((one.table_entry, one.table_entry.counter_data) for one in self._read([asked], COUNTERS_S))
        return {key_of(entities.key_of_table_entry(one)): (n.packet_count, n.byte_count) for one, n in found}

    def unmatched(self) -> Mapping[int, int]:
        return self._unmatched

    def _read(self, wanted: list[Any], within_s: float = CALL_S) -> Iterator[Any]:
        request = p4r.ReadRequest(device_id=self.device, entities=wanted)
        try:
            for answer in self._stub.Read(request, timeout=within_s):
                yield from answer.entities
        except grpc.RpcError as error:
            raise self._translated(error) from error

    def packet_out(self, port: int, frame: bytes) -> None:
        packet = p4r.PacketOut(payload=frame, metadata=entities.port_metadata(port))
        self._requests.put(p4r.StreamMessageRequest(packet=packet))

    def listen(self, packet_in: PacketIn) -> None:
        self._packet_in = packet_in

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()

    def _call(self, method: Any, request: Any, within_s: float = CALL_S) -> Any:
        try:
            return method(request, timeout=within_s)
        except grpc.RpcError as error:
            raise self._translated(error) from error

    def _translated(self, error: Any) -> TallystickError:
        if error.code() == grpc.StatusCode.PERMISSION_DENIED:
            return Superseded(f"switch {self.name}: another controller leads")
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:  # it would not answer the next question either
            return NotInForce(f"switch {self.name} does not answer", None)
        return Unavailable(error.details())


def _update(change: EntryChange) -> Any:
    kind = p4r.Update.DELETE if change.new is None else p4r.Update.INSERT if change.old is None else p4r.Update.MODIFY
    return p4r.Update(type=kind, entity=entities.to_entity(SwitchEntry(*change[:2], change.new)))
