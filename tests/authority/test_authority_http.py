"""The HTTP service and its client: the same methods as in process, signed, sealed, and silent to strangers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyrage
import pytest
from authority_world import PASSPHRASE, READ, SCHEMA, WRITE, Person, World
from stack import wait_until

from tallystick import wire
from tallystick.authority.asks import ASKS, BeginBackup, ReadBackup
from tallystick.authority.backup import restore
from tallystick.authority.client import AuthorityClient, Holder, OverHttp, enrol, topic_entries
from tallystick.authority.codec import specs
from tallystick.authority.describe import describe, table
from tallystick.authority.grant import Grant
from tallystick.authority.http import Service
from tallystick.authority.operator import OperatorClient, operator_identity
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.record.schema import Schema
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import ClientLimits, RequestSigner
from tallystick.runtime.http1 import UNAUTHENTICATED, RefusedByPeer
from tallystick.runtime.router import Rates
from tallystick.runtime.server import Server
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.certificate import Certificate
from tallystick.trust.envelope import check_time
from tallystick.trust.permit import Operation, Permit

ONCE = ClientLimits(attempts_max=1)


class Site:
    """A world whose authority is served over HTTP, on the machine's clock."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self.world = world
        self.service = Service(world.authority, SystemClock(), tick_s=0.01)
        self.server = Server(self.service.app, on_stop=self.service.end_polls)
        self.stack = stack
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        work = asyncio.create_task(self.service.run())
        await self.server.serve()
        work.cancel()

    def stop(self) -> None:
        self.server.stop()
        self._thread.join()
        self.service.close()

    def http(self, identity: RequestSigner | None, node: bytes | None = None) -> HttpClient:
        certificate = self.world.authority_certificate
        address = Address(self.server.url, node or certificate.subject, certificate.verify_key)
        client = HttpClient([address], identity, SystemClock(), SystemEntropy(), limits=ONCE)
        return self.stack.enter_context(client)

    def over_http(self, person: Person) -> AuthorityClient:
        http = self.http(RequestSigner(person.id, person.holder.signing_key))
        return AuthorityClient(OverHttp(http), self.world.authority_certificate, person.holder, SystemEntropy())

    def enrol(self, invite: str) -> Person:
        key, sealing = SigningKey.from_seed(SystemEntropy().bytes(32)), hpke.PrivateKey.generate(b"q" * 32)
        enrolled = enrol(OverHttp(self.http(None)), self.world.instance, invite, "car", key, sealing)
        certificate = Certificate.decode(enrolled.certificate)
        holder = Holder(self.world.instance, certificate.subject, key, sealing, certificate.tenant)
        return self.world.person(holder, certificate)


class WallClockWorld(World):
    """A world that lives at the machine's time, moved on by hand."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        ahead = SystemClock().now() - self.clock.now()
        self.clock.advance(ahead)
        self.ledger.flush(self.now_ms)
        self.authority.work()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    world = WallClockWorld(tmp_path)
    with ExitStack() as stack:
        made = Site(world, stack)
        yield made
        made.stop()
    world.authority.close()
    world.ledger.close()


def test_the_whole_flow_over_http(site: Site) -> None:
    world = site.world
    owner = site.enrol(world.authority.enrolment.create_tenant("acme"))
    by_http = site.over_http(owner)
    s = site.enrol(by_http.invite())
    draft = by_http.create_topic("brakes", SCHEMA.encode(), partitions=2, flags=ERASABLE)
    world.act(owner, *topic_entries(draft, owner.holder))
    resolved = by_http.resolve_rights("brakes", s.id, READ | WRITE)
    assert resolved.tokens == (draft.token,)
    world.act(owner, *resolved.entries)

    reader = site.over_http(s)
    assert reader.names().topics == by_http.names().topics == ((draft.token, "brakes"),)
    granted = reader.permit(Operation.SUBSCRIBE, "brakes")
    assert (granted.token, granted.settings.partitions, granted.settings.flags) == (draft.token, 2, ERASABLE)
    advertised = reader.permit(Operation.ADVERTISE, draft.token)
    period = advertised.erasure_keys[0].period
    assert by_http.erase(draft.token, s.id, [period]).periods == ((s.id, period),)

    wider = Schema.parse("vin string not null, speed float32, gear int8", 2)
    version, schema_hash = by_http.propose_schema(draft.token, wider.encode())
    world.act(owner, entries.schema(world.instance, draft.token, version, schema_hash, owner.holder.signing_key))
    news = reader.keys(Permit.decode(granted.permit).identifier, granted.version)
    assert news is not None
    assert news.schemas == (SCHEMA.encode(), wider.encode())
    assert reader.schemas(draft.token) == list(news.schemas)

    assert reader.undo(granted.permit, granted.undo_token).identifier == Permit.decode(granted.permit).identifier
    assert by_http.rotate(draft.token).epoch == 2
    by_http.revoke(s.id)
    with pytest.raises(RefusedByPeer) as refusal:
        reader.permit(Operation.SUBSCRIBE, "brakes")
    assert refusal.value.reason == UNAUTHENTICATED


def subscribed(site: Site) -> tuple[Person, bytes, AuthorityClient, Grant, bytes]:
    """An owner, its topic, and somebody who reads it: client, grant, and the permit's identifier."""
    owner, reader = site.world.tenant(), site.world.member("S")
    token = site.world.topic(owner)
    site.world.grant(owner, token, reader, READ)
    granted = site.over_http(reader).permit(Operation.SUBSCRIBE, token)
    return owner, token, site.over_http(reader), granted, Permit.decode(granted.permit).identifier


def test_a_long_poll_hears_of_rotation_without_a_restart(site: Site) -> None:
    owner, token, reader, granted, permit = subscribed(site)
    assert reader.keys(permit, granted.version, wait_ms=20) is None

    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(reader.keys(permit, granted.version, wait_ms=20_000)))
    waiting.start()
    site.over_http(owner).rotate(token)
    waiting.join()
    told = found[0]
    assert told is not None
    assert {one.number for one in told.epochs} >= {1, 2}  # type: ignore[attr-defined]


def test_who_waits_is_answered_when_the_service_ends_and_does_not_hold_it_up(site: Site) -> None:
    _, _, reader, granted, permit = subscribed(site)
    found: list[object] = []  # stays empty where the poll is cut: that is an error of the client's
    waiting = threading.Thread(target=lambda: found.append(reader.keys(permit, granted.version, wait_ms=60_000)))
    waiting.start()
    wait_until(lambda: len(site.service._polls) == 1)
    site.server.stop()
    waiting.join()
    assert found == [None]


def test_the_operator_asks_beside_the_running_process(site: Site, tmp_path: Path) -> None:
    world = site.world
    operator = OperatorClient(site.http(operator_identity(world.home, PASSPHRASE)), SystemEntropy())
    owner = site.enrol(operator.create_tenant("acme"))
    assert operator.tenants() == ("acme",)
    member = site.enrol(operator.invite_to("acme"))
    assert member.certificate.tenant == owner.certificate.tenant
    age = pyrage.x25519.Identity.generate()
    backup = operator.back_up([str(age.to_public())])
    assert restore(backup.data, str(age), tmp_path / "restored") == backup.identifier
    with pytest.raises(CannotOpen):
        operator_identity(world.home, b"another")
    with pytest.raises(Refused) as refusal:
        operator.create_tenant("acme")
    assert refusal.value.reason == "misuse"


def test_a_backup_greater_than_an_answer_is_handed_over_in_parts(site: Site, tmp_path: Path) -> None:
    authority, core = site.world.authority, site.world.authority.core
    core.limits = replace(core.limits, backup_part_bytes=10_000)
    operator = OperatorClient(site.http(operator_identity(site.world.home, PASSPHRASE)), SystemEntropy())
    age = pyrage.x25519.Identity.generate()
    backup = operator.back_up([str(age.to_public())])
    assert len(backup.data) > 5 * core.limits.backup_part_bytes
    assert restore(backup.data, str(age), tmp_path / "restored") == backup.identifier
    assert list(authority.folder.glob("outgoing*")) == []
    with pytest.raises(Refused, match="not here any more"):
        operator._ask(ReadBackup(backup.identifier, 0))
    # One that nobody fetched makes room for the next.
    for _ in range(2):
        operator._ask(BeginBackup((str(age.to_public()),)))
    [left] = authority.folder.glob("outgoing*")
    assert left.stat().st_mode & 0o777 == 0o600


def test_nobody_else_is_the_operator_and_the_operator_is_no_principal(site: Site) -> None:
    world = site.world
    owner = world.tenant()
    http = site.http(RequestSigner(owner.id, owner.holder.signing_key))
    for path, fields in (
        ("/v1/operator/tenants", ["mine"]),
        ("/v1/operator/tenants/list", []),
        ("/v1/operator/invites", ["acme", 1]),
        ("/v1/operator/backup", [[]]),
        ("/v1/operator/backup/part", [bytes(16), 0]),
        ("/v1/operator/rules", []),
        ("/v1/operator/entries", [[]]),
    ):
        with pytest.raises(Refused) as refusal:
            http.request("POST", path, body=wire.encode([b"n" * 16, *fields]))
        assert refusal.value.reason == "not-operator"
    http = site.http(operator_identity(world.home, PASSPHRASE))
    with pytest.raises(Refused) as refusal:
        http.request("POST", "/v1/permits", body=wire.encode([b"n" * 16, 1, "brakes", b"", 0, ""]))
    assert refusal.value.reason == UNAUTHENTICATED


def test_the_operator_writes_what_is_an_operator_s_and_nothing_else_in_the_authority_s_name(site: Site) -> None:
    operator = OperatorClient(site.http(operator_identity(site.world.home, PASSPHRASE)), SystemEntropy())
    for entry in (entries.erase(bytes(16), bytes(16), 1), entries.revoke(bytes(16)), b"\x80", b"\x01"):
        with pytest.raises(Refused) as refusal:
            operator.change_rules([entries.set_("rise_max", 9), entry])
        assert refusal.value.reason == "unknown-kind"
    assert dict(operator.rules().settings)["rise_max"] == 10
    operator.change_rules([entries.set_("rise_max", 9)])
    assert dict(operator.rules().settings)["rise_max"] == 9


def test_strangers_all_see_one_face(site: Site) -> None:
    world = site.world
    s = world.tenant()
    stranger = SigningKey.from_seed(b"x" * 32)
    permits, body = "/v1/permits", wire.encode([b"n" * 16, 1, "brakes", b"", 0, ""])

    def answer(http: HttpClient, path: str, sent: bytes = body) -> tuple[int, str, object]:
        with pytest.raises(RefusedByPeer) as refusal:
            http.request("POST", path, body=sent)
        return refusal.value.status, refusal.value.reason, refusal.value.extra

    faces = {
        answer(site.http(None), permits),  # unsigned
        answer(site.http(RequestSigner(world.entropy.bytes(16), stranger)), permits),  # nobody's name
        answer(site.http(RequestSigner(s.id, stranger)), permits),  # another's name
        answer(site.http(RequestSigner(s.id, s.holder.signing_key), world.node), permits),  # to another node
        answer(site.http(None), "/v1/enrol", wire.encode(["aaaaaa", "car", b"", b"", b""])),
        answer(site.http(None), "/v1/enrol", b"\xff"),
        answer(site.http(None), "/v1/enrol/confirm", wire.encode([s.id, bytes(32)])),
        answer(site.http(None), "/v1/no/such/path"),
    }
    assert faces == {(403, UNAUTHENTICATED, None)}


def test_to_the_authenticated_each_mistake_is_named(site: Site) -> None:
    world = site.world
    s = world.tenant()
    http = site.http(RequestSigner(s.id, s.holder.signing_key))
    cases: list[tuple[str, list[object], str]] = [
        ("/v1/permits", [b"short", 1, "brakes", b"", 0, ""], "malformed"),
        ("/v1/permits", [b"n" * 16, 3, "brakes", b"", 0, ""], "malformed"),
        ("/v1/permits", [b"n" * 16, 1, "brakes", b"t" * 16, 0, ""], "malformed"),
        ("/v1/permits", [b"n" * 16, 1, "brakes", b"", 0, ""], "unknown-topic"),
        ("/v1/permits", [b"n" * 16, 1, "x" * 201, b"", 0, ""], "malformed"),
        ("/v1/keys", [b"n" * 16, b"p" * 16, 0, 0], "unknown-permit"),
        ("/v1/keys", [b"n" * 16, b"p" * 16, 0, -1], "malformed"),
        ("/v1/keys", [], "malformed"),
        ("/v1/topics", [b"n" * 16, "a b", SCHEMA.encode(), 1, 0], "misuse"),
        ("/v1/topics", [b"n" * 16, "a", b"\x80", 1, 0], "malformed"),
        ("/v1/topics", [b"n" * 16, "a", SCHEMA.encode(), 0, 0], "misuse"),
        ("/v1/undo", [b"n" * 16, b"", bytes(32)], "wrong-permit"),
        ("/v1/erase", [b"n" * 16, b"t" * 16, s.id, ["x"]], "malformed"),
    ]
    for path, fields, expected in cases:
        with pytest.raises(Refused) as refusal:
            http.request("POST", path, body=wire.encode(fields))
        assert refusal.value.reason == expected, (path, fields)


def test_a_request_too_large_is_refused_unread(site: Site) -> None:
    s = site.world.tenant()
    http = site.http(RequestSigner(s.id, s.holder.signing_key))
    with pytest.raises(Refused) as refusal:
        http.request("POST", "/v1/topics", body=bytes(site.world.limits.request_bytes_max + 1))
    assert refusal.value.reason == "too-large"


def test_a_sealed_answer_is_bound_to_the_request(site: Site) -> None:
    """A carrier that keeps an answer and shows it for the next request is found out."""
    world = site.world
    owner = world.tenant()
    token = world.topic(owner)
    world.grant(owner, token, owner, READ)
    http = site.http(RequestSigner(owner.id, owner.holder.signing_key))
    old = http.request("POST", "/v1/permits", body=wire.encode([b"a" * 16, 1, "", token, 0, ""]))
    again = http.request("POST", "/v1/permits", body=wire.encode([b"a" * 16, 1, "", token, 0, ""]))
    assert world.authority.statistics().permits_live == 1
    for response in (old, again):
        sealed = wire.decode(response.body)[0]
        info = wire.encode(["tallystick answer 1", world.instance, owner.id, b"a" * 16])
        assert hpke.open_(owner.holder.sealing_key, sealed, info)
        with pytest.raises(CannotOpen):
            hpke.open_(owner.holder.sealing_key, sealed, info[:-1] + b"b")


def test_a_principal_that_asks_too_much_is_slowed_down_alone() -> None:
    rates = Rates(per_s=10, burst=3, principals_max=2)
    for _ in range(3):
        rates.charge(b"greedy", 0.0)
    with pytest.raises(Unavailable) as busy:
        rates.charge(b"greedy", 0.0)
    assert busy.value.retry_after_s == pytest.approx(0.1)
    rates.charge(b"modest", 0.0)
    rates.charge(b"greedy", 0.11)
    with pytest.raises(Unavailable):
        rates.charge(b"greedy", 0.12)
    rates.charge(b"third", 0.12)  # pushes the least recent out, never the one just counted
    with pytest.raises(Unavailable):
        rates.charge(b"greedy", 0.12)


def test_what_anybody_may_ask(site: Site) -> None:
    http = site.http(None)
    certificate = site.world.authority_certificate
    signed = http.request("GET", "/v1/time", query="nonce=" + "ab" * 16).body
    assert check_time(signed, certificate.verify_key, certificate.subject, b"\xab" * 16) > 0
    with pytest.raises(Refused):
        http.request("GET", "/v1/time", query="nonce=zz")
    assert http.request("GET", "/health/live").body == b"live\n"
    assert http.request("GET", "/health/ready").body == b"ready\n"
    assert b"tally_authority_ready 1.0" in http.request("GET", "/metrics").body
    assert json.loads(http.request("GET", "/openapi.json").body) == describe()


def test_readiness_is_told_while_the_store_and_all_its_threads_are_busy(site: Site) -> None:
    service, http = site.service, site.http(None)
    with site.world.authority.core.store.lock:
        for _ in range(4):  # more than it has threads of its own, and its work waits as well
            service._own.submit(site.world.authority.statistics)
        assert [http.request("GET", "/health/ready").body for _ in range(8)] == [b"ready\n"] * 8
        site.world.authority._is_restored = True
        with pytest.raises(Unavailable, match="authority behind: the authority was restored"):
            http.request("GET", "/health/ready")
        site.world.authority._is_restored = False


def test_the_description_covers_every_route() -> None:
    document = describe()
    assert {ask.path for ask in ASKS} <= document["paths"].keys()
    for ask in ASKS:
        described = document["paths"][ask.path]["post"]
        schema = described["requestBody"]["content"]["application/cbor"]["schema"]
        assert schema["minItems"] == len(specs(ask)) + int(ask.signed)
        assert bool(described["security"]) == ask.signed


def test_the_page_of_the_format_shows_the_table_of_routes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "authority.md").read_text(encoding="utf-8")
    shown = page.partition("describe.table -->\n")[2].partition("<!-- end of generated")[0]
    assert shown.strip() == table().strip()
