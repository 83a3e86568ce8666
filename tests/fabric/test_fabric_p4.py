"""A switch and its controller over P4Runtime: who leads, writes that are whole, packets, and what is refused."""

from __future__ import annotations

import datetime
import ipaddress
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import grpc
import lab
import plane_world
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from finsy.proto import p4r, p4r_grpc, rpc_code, rpc_status
from without import without

from tallystick.carriers.fabric.entries import (
    Entries,
    NextKey,
    RouteAction,
    RouteVerdict,
    RuleEntries,
    SwitchEntry,
    match_of,
)
from tallystick.carriers.fabric.p4_channel import SwitchTls
from tallystick.carriers.fabric.p4_client import P4RuntimeSwitch
from tallystick.carriers.fabric.p4_entities import (
    from_entity,
    read_unmatched,
    switch_program,
    tell_unmatched,
    to_entity,
)
from tallystick.carriers.fabric.p4_server import SwitchServer
from tallystick.carriers.fabric.route import RouteHeader, control, publication
from tallystick.carriers.fabric.rules import FlowRule, NotInForce, RuleChanges, RuleKey, Superseded
from tallystick.errors import Misuse, Unavailable
from tallystick.runtime.sources import SystemClock

DEVICE = 7


def label(number: int) -> bytes:
    return number.to_bytes(16)


def rule(name: int, *ports: int, epoch: int = 1) -> FlowRule:
    return FlowRule(epoch, label(name), tuple((port, label(1000 * name + port)) for port in ports))


def changes(*rules: FlowRule, without: Sequence[RuleKey] = ()) -> RuleChanges:
    return {**dict.fromkeys(without), **table(*rules)}


def table(*rules: FlowRule) -> dict[RuleKey, FlowRule]:
    return {one.key: one for one in rules}


Switch = tuple[SwitchServer, str, dict[int, lab.Tap]]


@pytest.fixture
def switch() -> Iterator[Switch]:
    plane, taps, close = plane_world.on_datagrams([1, 2, 3])
    server = SwitchServer(DEVICE, plane, SystemClock())
    yield server, f"127.0.0.1:{server.start()}", taps
    server.close()
    close()


@pytest.fixture
def controller(switch: Switch) -> Iterator[P4RuntimeSwitch]:
    found = P4RuntimeSwitch("a", DEVICE, switch[1])
    found.lead(10)
    yield found
    found.close()


def test_rules_are_written_read_back_and_carried_out(switch: Switch, controller: P4RuntimeSwitch) -> None:
    _server, _address, taps = switch
    controller.write(changes(rule(1, 2, 3), rule(2, 3)))
    assert controller.read() == table(rule(1, 2, 3), rule(2, 3))
    taps[1].send(publication(RouteHeader(1, label(1)), b"hello"))
    assert taps[2].hear() == publication(RouteHeader(1, label(1002)), b"hello")
    assert taps[3].hear() == publication(RouteHeader(1, label(1003)), b"hello")
    assert controller.counters() == {(1, label(1)): (1, 39), (1, label(2)): (0, 0)}

    controller.write(changes(rule(2, 2), without=[(1, label(1))]))
    assert controller.read() == table(rule(2, 2))
    taps[1].send(publication(RouteHeader(1, label(1)), b"gone"))
    taps[1].send(publication(RouteHeader(1, label(2)), b"moved"))
    assert taps[2].hear() == publication(RouteHeader(1, label(2002)), b"moved")


def test_packets_go_in_and_out(switch: Switch, controller: P4RuntimeSwitch) -> None:
    _server, _address, taps = switch
    came: list[tuple[int, bytes]] = []
    heard = threading.Event()
    controller.listen(lambda port, frame: came.append((port, frame)) or heard.set())
    taps[2].send(control(b"subscribe"))
    assert heard.wait(60)
    assert came == [(2, control(b"subscribe"))]
    controller.packet_out(3, control(b"answer"))
    assert taps[3].hear() == control(b"answer")


def test_no_entry_is_left_over_whatever_is_written(switch: Switch, controller: P4RuntimeSwitch) -> None:
    """Random writes: the tables are those of the rules, with no next label and no group too many."""
    rng = random.Random(18)
    held: dict[RuleKey, FlowRule] = {}
    for _ in range(40):
        install = [rule(name, *sorted(rng.sample([1, 2, 3], rng.randint(1, 3)))) for name in rng.sample(range(9), 3)]
        remove = rng.sample(sorted(held), min(len(held), 2))
        controller.write(changes(*install, without=remove))
        for key in remove:
            held.pop(key)
        held.update(table(*install))
        assert controller.read() == held
        entries = switch[0].statistics().entries
        assert entries["publications"] == len(held)
        assert entries["next_labels"] == sum(len(one.out) for one in held.values())
        assert entries["groups"] == len({one.ports for one in held.values() if len(one.ports) > 1})


def test_what_a_label_leads_to_is_there_before_the_label_leads_there() -> None:
    """At every stage each publication that is in force has its group and the names behind every port of it."""
    rng = random.Random(4)
    held = RuleEntries(())
    tables: dict[Entries, dict[Any, Any]] = {kind: {} for kind in Entries}
    for _ in range(200):
        install = [rule(name, *sorted(rng.sample(range(1, 6), rng.randint(1, 4)))) for name in rng.sample(range(6), 2)]
        remove = rng.sample(sorted(held.rules), min(len(held.rules), 2))
        stages = held.change(changes(*install, without=remove))
        for stage in stages:
            rng.shuffle(stage)  # a target may carry one request out in any order
            for kind, key, old, new in stage:
                assert tables[kind].get(key) == old
                tables[kind].pop(key) if new is None else tables[kind].update({key: new})
                for match, (verdict, argument) in tables[Entries.PUBLICATIONS].items():
                    ports = (
                        [argument]
                        if verdict is RouteVerdict.FORWARD
                        else [one for one, _ in tables[Entries.GROUPS][argument]]
                    )
                    assert all(NextKey(match, port) in tables[Entries.NEXT_LABELS] for port in ports)
        assert RuleEntries((kind, *one) for kind in Entries for one in tables[kind].items()).rules == held.rules


def test_a_port_from_which_labels_come_that_nobody_knows_is_told(switch: Switch, controller: P4RuntimeSwitch) -> None:
    server, address, taps = switch
    assert controller.unmatched() == {}
    for number in range(5):
        taps[2].send(publication(RouteHeader(1, label(number)), b"a guess"))
    assert lab.eventually(lambda: server.statistics().plane.unmatched == {2: 5})
    controller.counters()
    assert lab.eventually(lambda: controller.unmatched() == {2: 5})
    successor = P4RuntimeSwitch("a", DEVICE, address)
    successor.lead(11)  # which reads the tables
    assert lab.eventually(lambda: successor.unmatched() == {2: 5})
    successor.close()


def test_another_s_message_says_nothing_of_ports() -> None:
    message = tell_unmatched({1: 7, 700: 1})
    assert read_unmatched(message.other) == {1: 7}
    message.other.value = b"\xff"
    assert read_unmatched(message.other) == {}
    message.other.Pack(p4r.Uint128())
    assert read_unmatched(message.other) == {}


# --- who may write ---


def test_a_controller_that_was_replaced_writes_nothing_any_more(switch: Switch, controller: P4RuntimeSwitch) -> None:
    controller.write(changes(rule(1, 2)))
    successor = P4RuntimeSwitch("a", DEVICE, switch[1])
    with pytest.raises(Superseded, match="greater number leads"):
        successor.lead(9)
    successor.lead(11)
    assert successor.read() == table(rule(1, 2))
    with pytest.raises(Superseded, match="another controller leads"):
        controller.write(changes(without=[(1, label(1))]))
    successor.close()
    assert lab.eventually(lambda: len(switch[0]._arbitration.elections) == 1)
    with pytest.raises(Superseded):  # nor when the one with the greater number has gone
        controller.write(changes(without=[(1, label(1))]))
    with pytest.raises(Superseded):
        controller.lead(10)
    assert controller.read() == table(rule(1, 2))


def test_a_successor_keeps_the_tables_and_clears_strays_away(switch: Switch, controller: P4RuntimeSwitch) -> None:
    """It does not push the pipeline again, which would empty them."""
    controller.write(changes(rule(1, 2), rule(2, 2, 3)))
    stray = match_of((5, label(5)))
    updates = [
        p4r.Update(type=p4r.Update.INSERT, entity=to_entity(one))
        for one in (
            SwitchEntry(Entries.PUBLICATIONS, stray, RouteAction(RouteVerdict.FORWARD, 3)),  # nothing behind it
            SwitchEntry(Entries.NEXT_LABELS, NextKey(stray, 1), label(1)),
            SwitchEntry(Entries.GROUPS, 60, ((1, 0), (2, 0))),
        )
    ]
    election = p4r.Uint128(low=10)
    controller._stub.Write(p4r.WriteRequest(device_id=DEVICE, election_id=election, updates=updates))
    successor = P4RuntimeSwitch("a", DEVICE, switch[1])
    successor.lead(12)
    assert successor.read() == table(rule(1, 2), rule(2, 2, 3))
    successor.write(changes())
    assert switch[0].statistics().entries == {"publications": 2, "next_labels": 3, "groups": 1}
    successor.close()


def test_a_write_that_fails_in_the_middle_is_taken_back(switch: Switch, controller: P4RuntimeSwitch) -> None:
    """Here since the plane has no room; the switch is as it was, and the error says so."""
    plane = switch[0]._plane
    controller.write(changes(rule(1, 2), rule(2, 2, 3)))
    honest = plane.put

    def full(entry: SwitchEntry) -> None:
        if entry.kind is Entries.PUBLICATIONS and entry.key == match_of((1, label(4))):
            raise Unavailable("no room")
        honest(entry)

    plane.put = full
    with pytest.raises(NotInForce, match="no room") as failed:
        controller.write(changes(rule(1, 3), rule(3, 1, 2), rule(4, 1), without=[(1, label(2))]))
    assert failed.value.in_force == controller.read() == table(rule(1, 2), rule(2, 2, 3))
    assert switch[0].statistics().entries == {"publications": 2, "next_labels": 3, "groups": 1}


def test_a_switch_that_is_gone_is_named(switch: Switch, controller: P4RuntimeSwitch) -> None:
    switch[0]._server.stop(0).wait()
    with pytest.raises(NotInForce, match="not known") as failed:
        controller.write(changes(rule(1, 2)))
    assert failed.value.in_force is None


def test_a_switch_that_comes_back_is_led_again() -> None:
    controller: P4RuntimeSwitch | None = None
    address = "127.0.0.1:0"
    for election in (1, 2):
        plane, _taps, close = plane_world.on_datagrams([1, 2])
        server = SwitchServer(DEVICE, plane, SystemClock())
        address = f"127.0.0.1:{server.start(address)}"
        controller = controller or P4RuntimeSwitch("a", DEVICE, address)
        assert lab.eventually(lambda: leads(controller, election))  # noqa: B023
        assert controller.read() == {}
        controller.write(changes(rule(1, 2)))
        server.close()
        close()
    assert controller is not None
    controller.close()


def leads(controller: P4RuntimeSwitch | None, election: int) -> bool:
    assert controller is not None
    try:
        controller.lead(election)
    except Unavailable:
        return False
    return True


# --- what the server refuses ---


class Peer:
    """A controller that may say anything."""

    def __init__(self, address: str, election: int = 20) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self.election = p4r.Uint128(low=election)

    def arbitrate(self, device: int = DEVICE) -> Any:
        claim = p4r.MasterArbitrationUpdate(device_id=device, election_id=self.election)
        silence = threading.Event()

        def say() -> Iterator[Any]:
            yield p4r.StreamMessageRequest(arbitration=claim)
            silence.wait(20)

        self.stream = self.stub.StreamChannel(say())
        return next(self.stream)

    def configure(self) -> None:
        action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        config = switch_program().config
        self.stub.SetForwardingPipelineConfig(
            p4r.SetForwardingPipelineConfigRequest(
                device_id=DEVICE, election_id=self.election, action=action, config=config
            )
        )

    def write(self, *updates: tuple[Any, Any], device: int = DEVICE) -> list[int]:
        """The code of each update."""
        made = [p4r.Update(type=kind, entity=entity) for kind, entity in updates]
        try:
            self.stub.Write(p4r.WriteRequest(device_id=device, election_id=self.election, updates=made))
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNKNOWN:
                return [error.code().value[0]]
            (details,) = (value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin")
            faults = []
            for one in rpc_status.Status.FromString(details).details:
                fault = p4r.Error()
                assert one.Unpack(fault)
                faults.append(fault.canonical_code)
            return faults
        return [rpc_code.OK] * len(updates)


INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE


def entity(name: int = 1, verdict: RouteVerdict = RouteVerdict.FORWARD, argument: int = 2) -> Any:
    return to_entity(SwitchEntry(Entries.PUBLICATIONS, match_of((1, label(name))), RouteAction(verdict, argument)))


def altered(**changes: Any) -> Any:
    made = entity()
    for path, value in changes.items():
        part = made.table_entry
        *way, last = path.split("__")
        for step in way:
            part = getattr(part, step) if not step.startswith("at") else part[int(step[2:])]
        setattr(part, last, value)
    return made


@pytest.fixture
def peer(switch: Switch) -> Iterator[Peer]:
    found = Peer(switch[1])
    found.arbitrate()
    found.configure()
    yield found
    found.channel.close()


def test_each_update_has_its_own_answer(peer: Peer) -> None:
    group = to_entity(SwitchEntry(Entries.GROUPS, 3, ((1, 0), (2, 0))))
    assert peer.write(
        (INSERT, entity()), (INSERT, entity()), (MODIFY, entity(2)), (DELETE, entity(2)), (INSERT, group)
    ) == [*(rpc_code.OK, rpc_code.ALREADY_EXISTS, rpc_code.NOT_FOUND, rpc_code.NOT_FOUND, rpc_code.OK)]
    assert peer.write((MODIFY, entity(argument=3)), (DELETE, entity()), (DELETE, group)) == [rpc_code.OK] * 3


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (altered(table_id=5), rpc_code.NOT_FOUND),
        (altered(priority=1), rpc_code.INVALID_ARGUMENT),
        (altered(is_default_action=True), rpc_code.PERMISSION_DENIED),
        (altered(match__at0__exact__value=b"\x01\x00\x00"), rpc_code.OUT_OF_RANGE),
        (altered(match__at0__exact__value=b""), rpc_code.OUT_OF_RANGE),
        (altered(match__at1__field_id=1), rpc_code.INVALID_ARGUMENT),
        (altered(match__at1__field_id=3), rpc_code.INVALID_ARGUMENT),
        (altered(match__at1__exact__value=b"\x01" + bytes(16)), rpc_code.OUT_OF_RANGE),
        (altered(action__action__action_id=1), rpc_code.INVALID_ARGUMENT),
        (altered(action__action__action_id=switch_program().actions["relabel"]), rpc_code.INVALID_ARGUMENT),
        (altered(action__action__action_id=switch_program().actions["to_controller"]), rpc_code.INVALID_ARGUMENT),
        (altered(action__action__params__at0__param_id=2), rpc_code.INVALID_ARGUMENT),
        (entity(argument=512), rpc_code.OUT_OF_RANGE),
        (entity(argument=510), rpc_code.OUT_OF_RANGE),  # publications to the controller
        (entity(verdict=RouteVerdict.MULTICAST, argument=65_536), rpc_code.OUT_OF_RANGE),
        (to_entity(SwitchEntry(Entries.GROUPS, 0, ((1, 0),))), rpc_code.INVALID_ARGUMENT),
        (to_entity(SwitchEntry(Entries.GROUPS, 65_536, ((1, 0),))), rpc_code.INVALID_ARGUMENT),
        (to_entity(SwitchEntry(Entries.GROUPS, 1, ((1, 0), (1, 0)))), rpc_code.INVALID_ARGUMENT),
        (to_entity(SwitchEntry(Entries.GROUPS, 1, ((510, 0),))), rpc_code.OUT_OF_RANGE),
        (to_entity(SwitchEntry(Entries.GROUPS, 1, tuple((1, at) for at in range(513)))), rpc_code.RESOURCE_EXHAUSTED),
        (p4r.Entity(), rpc_code.UNIMPLEMENTED),
        (p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=1)), rpc_code.UNIMPLEMENTED),
    ],
)
def test_a_malformed_update_is_refused_alone(peer: Peer, bad: Any, code: int) -> None:
    assert peer.write((INSERT, bad), (INSERT, entity(9))) == [code, rpc_code.OK]


def test_nobody_writes_without_being_the_primary_or_before_the_pipeline(switch: Switch) -> None:
    early = Peer(switch[1])
    assert early.write((INSERT, entity())) == [rpc_code.PERMISSION_DENIED]
    early.arbitrate()
    assert early.write((INSERT, entity())) == [rpc_code.FAILED_PRECONDITION]
    early.configure()
    assert early.write((INSERT, entity())) == [rpc_code.OK]
    assert early.write((INSERT, entity()), device=8) == [rpc_code.NOT_FOUND]
    backup = Peer(switch[1], election=3)
    assert backup.arbitrate().arbitration.status.code == rpc_code.ALREADY_EXISTS
    assert backup.write((DELETE, entity())) == [rpc_code.PERMISSION_DENIED]
    same = Peer(switch[1], election=20)
    with pytest.raises(grpc.RpcError, match="another's"):
        same.arbitrate()
    with pytest.raises(grpc.RpcError, match="this is device 7"):
        Peer(switch[1]).arbitrate(device=8)
    for one in (early, backup, same):
        one.channel.close()


def test_another_program_is_refused(peer: Peer) -> None:
    config = p4r.ForwardingPipelineConfig(p4info=switch_program().config.p4info, p4_device_config=b"{}")
    action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
    request = p4r.SetForwardingPipelineConfigRequest(
        device_id=DEVICE, election_id=peer.election, action=action, config=config
    )
    with pytest.raises(grpc.RpcError, match="one program, and no other"):
        peer.stub.SetForwardingPipelineConfig(request)


def test_a_full_table_says_so_and_goes_on_working(switch: Switch, peer: Peer) -> None:
    switch[0]._plane.tables[Entries.PUBLICATIONS].update({match_of((2, label(n))): None for n in range(65_535)})
    assert peer.write((INSERT, entity(1)), (INSERT, entity(2)), (MODIFY, entity(1, argument=3))) == [
        *(rpc_code.OK, rpc_code.RESOURCE_EXHAUSTED, rpc_code.OK)
    ]
    switch[2][1].send(publication(RouteHeader(1, label(1)), b"still"))
    assert switch[2][3].hear() == publication(RouteHeader(1, label(1)), b"still")


def test_entities_are_read_as_they_were_written() -> None:
    for entry in plane_world.entries(plane_world.VECTORS["entries"]):
        if entry.kind is not Entries.GROUPS:
            assert from_entity(to_entity(entry)) == entry


def flood(switch: Switch, controller: P4RuntimeSwitch) -> list[int]:
    """The ports from which packet-ins came while port 1 sent 6,000, and another port one of its own at the end."""
    came: list[int] = []
    controller.listen(lambda port, frame: came.append(port))
    for _ in range(12):
        for _ in range(500):
            switch[2][1].send(control(b"flood"))
        time.sleep(0.01)  # so that the wire holds them
    seen = switch[0].statistics().packet_ins
    switch[2][2].send(control(b"subscribe"))
    assert lab.eventually(lambda: switch[0].statistics().packet_ins > seen)
    lab.eventually(lambda: 2 in came, 5)
    return came


def test_a_port_that_floods_the_controller_silences_no_other(switch: Switch, controller: P4RuntimeSwitch) -> None:
    came = flood(switch, controller)
    assert 2 in came
    assert came.count(1) < 1_000
    counted = switch[0].statistics()
    assert counted.packet_ins_dropped[1] > 1_000
    assert 2 not in counted.packet_ins_dropped


def test_without_its_bound_the_flood_is_all_the_controllers(switch: Switch, controller: P4RuntimeSwitch) -> None:
    with without("the packet-ins of one port"):
        came = flood(switch, controller)
    assert came.count(1) > 1_000


def overwritten(switch: Switch, controller: P4RuntimeSwitch) -> bool:
    """Whether a controller that was replaced still gets its rule into the switch."""
    successor = P4RuntimeSwitch("a", DEVICE, switch[1])
    successor.lead(11)
    successor.write(changes(rule(1, 2)))
    with suppress(Superseded, NotInForce):
        controller.write(changes(rule(1, 3)))
    held = successor.read()
    successor.close()
    return held != table(rule(1, 2))


def test_only_the_fence_keeps_a_replaced_controller_out(switch: Switch, controller: P4RuntimeSwitch) -> None:
    assert not overwritten(switch, controller)
    with without("the election number of who writes"):
        successor = P4RuntimeSwitch("a", DEVICE, switch[1])
        successor.lead(12)
        successor.write(changes(without=[(1, label(1))]))
        controller.write(changes(rule(1, 3)))
        assert successor.read() == table(rule(1, 3))
        successor.close()


def led_to_the_controller(peer: Peer, switch: Switch) -> bool:
    """Whether every publication under a label can be made the controller's business."""
    taken = peer.write((INSERT, entity(argument=510))) == [rpc_code.OK]
    seen = switch[0].statistics().packet_ins
    switch[2][1].send(publication(RouteHeader(1, label(1)), b"x"))
    return taken and lab.eventually(lambda: switch[0].statistics().packet_ins > seen, 2)


def test_no_rule_leads_publications_to_the_controller(peer: Peer, switch: Switch) -> None:
    assert not led_to_the_controller(peer, switch)
    with without("the controller's port in a rule"):
        assert led_to_the_controller(peer, switch)


# --- off loopback ---


def certified(names: str, by: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """(certificate, key), signed by another or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by[0].subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), True)
    )
    return made.sign(by[1] if by else key, hashes.SHA256()), key


def pem(pair: tuple[Any, Any], roots: tuple[Any, Any]) -> SwitchTls:
    key = pair[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificates = (one.public_bytes(serialization.Encoding.PEM) for one in (pair[0], roots[0]))
    return SwitchTls(key, *certificates)


def test_with_tls_only_the_operators_own_reach_a_switch() -> None:
    roots, strangers = certified("operator"), certified("strangers")
    ours, theirs = pem(certified("controller", roots), roots), pem(certified("controller", strangers), roots)
    plane, _taps, close = plane_world.on_datagrams([1, 2])
    server = SwitchServer(DEVICE, plane, SystemClock(), tls=pem(certified("switch", roots), roots))
    address = f"127.0.0.1:{server.start('0.0.0.0:0')}"
    for tls in (theirs, None, pem(certified("controller", roots), strangers)):  # the last distrusts the switch
        stranger = P4RuntimeSwitch("a", DEVICE, address, tls)
        with pytest.raises(Unavailable):
            stranger.lead(1)
        stranger.close()
    controller = P4RuntimeSwitch("a", DEVICE, address, ours)
    controller.lead(1)
    controller.write(changes(rule(1, 2)))
    assert controller.read() == table(rule(1, 2))
    controller.close()
    server.close()
    close()


def test_off_loopback_a_switch_and_its_controller_want_tls(switch: Switch) -> None:
    plane, _taps, close = plane_world.on_datagrams([1])
    server = SwitchServer(1, plane, SystemClock())
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:9559", "switch.example:9559"):
        with pytest.raises(Misuse, match="TLS alone"):
            server.start(address)
        with pytest.raises(Misuse, match="TLS alone"):
            P4RuntimeSwitch("far", 1, address)
    plane.close()
    close()
