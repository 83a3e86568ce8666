"""Writes the history of this version: `PYTHONPATH=tests python tests/history/make_history.py 0.1.0`.

An instance lives for two days and is put away: a ledger with every kind of entry, a log with every kind of parcel, lock
and codec, homes of publishers and readers, parcels that were never sent, an authority and its backup. Run it when a
version is released, and commit what it writes; from then on the folder stays as it is (see CONTRIBUTING.md).

Keys come from a seed and the clock starts at a fixed time. Ephemeral keys, salts and the roots' signatures are drawn
by the product itself, and blocks are made by its threads: so a second run writes another history of the same things.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyrage
from actors import Hand, await_topic, reason, settle, stored, write_as_node
from attribute_actors import Attributes
from authority_world import World
from contract_story import ContractStory
from past import (
    CONTRACTS,
    CURRENT,
    HERE,
    MESH,
    Found,
    History,
    PastClock,
    live,
    look,
    look_at_authority,
    look_at_ledger,
    look_at_mesh,
)
from stack import READ, WRITE, Stack, wait_until

import tallystick.carriers.log.server as log_server
from tallystick.authority.answers import REMEMBER
from tallystick.authority.backup import restore
from tallystick.authority.mesh_messages import MeshRequest
from tallystick.carriers.log.limits import LogLimits
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Place
from tallystick.client.group import group_id
from tallystick.client.publish import Publisher
from tallystick.client.session import Session
from tallystick.client.writes import Committer, PartWriter, held
from tallystick.crypto.exchange import ExchangeKey
from tallystick.demo.forgery import JUNK, exchange
from tallystick.identity.rekey import rekey
from tallystick.ledger import entries
from tallystick.ledger.contracts.reputation import EQUIVOCATIONS
from tallystick.ledger.contracts.retention import Retention
from tallystick.ledger.contracts.topics import ERASABLE, PADDED
from tallystick.node.instance import open_root
from tallystick.parcel.commit import CommitList
from tallystick.policy.topic_code import TopicCode
from tallystick.record.codec import NAMES
from tallystick.record.schema import Schema
from tallystick.runtime.sources import SeededEntropy
from tallystick.trust.promise import Promise

START = 1_772_438_400  # 2 March 2026, 08:00 UTC
HOUR_S, DAY_S = 3_600, 86_400
PASSPHRASE = b"thrown away"
AUTHORITY = {"revoke_s": 1, "epochs_ahead": 1}
SEGMENT_BYTES = 6_000  # so that partitions have several segments, and retention something to let go
SCHEMA = "vin string, seq int64 not null, speed float32"
GROUPED = Schema.parse(
    "seq int64 not null, speed float32, lat float64, fuel float32", groups=(("seq", "speed"), ("lat",), ("fuel",))
)
TOPICS: list[tuple[str, str | Schema, int, int]] = [  # name, schema, partitions, flags
    ("brakes", SCHEMA, 2, 0),
    ("tyres", SCHEMA, 1, 0),
    ("drives", GROUPED, 1, 0),
    ("notes", SCHEMA, 1, ERASABLE),
    ("quiet", SCHEMA, 1, PADDED),
    ("sums", SCHEMA, 3, 0),
    ("labelled", SCHEMA, 1, 0),
    ("old", SCHEMA, 1, 0),
]
READERS = {"reader": [name for name, *_ in TOPICS], "clerk": ["drives"]}
HOMES = ["acme-owner", "car", "van", "reader", "clerk"]  # that are kept


class Story:
    def __init__(self, stack: Stack, clock: PastClock) -> None:
        self.stack, self.clock = stack, clock
        self.owner, self.rival = stack.tenant("acme"), stack.tenant("beta")
        self.car, self.van, self.reader, self.clerk, self.liar, self.thief = (
            stack.principal("acme", name) for name in ("car", "van", "reader", "clerk", "liar", "thief")
        )
        self.tokens: dict[str, bytes] = {}
        self.sent: dict[str, list[int]] = {name: [] for name, *_ in TOPICS}  # what readers must get
        self._last = 0

    def tell(self) -> None:
        self.make_topics()
        self.publish_in_every_way()
        self.write_together()
        self.lock_by_attributes()
        self.take_offence()
        self.pass_time(DAY_S + HOUR_S)  # epochs end by their schedule
        self.change_keys_and_rights()
        self.read_as_a_group()
        self.operate()
        self.retire_a_topic()
        self.back_up()
        self.go_on_after_the_backup()
        self.leave_things_waiting()

    def pass_time(self, seconds: float) -> None:
        """Go on when the ledger has a block of the new time, and the authority has seen it."""
        self.clock.jump(seconds)
        ledger, now_ms = self.stack.node.ledger, int(self.clock.now() * 1000)
        wait_until(lambda: ledger.block(ledger.height).time_ms >= now_ms)
        self.stack.authority.authority.work()
        wait_until(self.stack._authority_is_ready)

    # Making and publishing.

    def make_topics(self) -> None:
        for name, schema, partitions, flags in TOPICS:
            token = self.tokens[name] = self.stack.topic(self.owner, name, schema, partitions=partitions, flags=flags)
            await_topic(self.stack, token)
            for who, operations in ((self.car, WRITE), (self.van, WRITE), (self.reader, READ)):
                self.stack.grant(self.owner, token, who, operations)
        code = TopicCode.read(["speed:4:0..160"], Schema.parse(SCHEMA).arrow, number=6)
        authority = self.owner.authority
        authority.labels(self.tokens["labelled"], code.encode())
        authority.create_topic("drafted", Schema.parse(SCHEMA).encode(), 1, 0)
        matching = authority.resolve_rights("b*", self.clerk.identity.principal, int(READ), mode=REMEMBER)
        self.owner.author.write(*matching.entries)

    def number(self, *topics: str) -> int:
        """The number of a new row, which readers of these topics must get."""
        self._last += 1
        for topic in topics:
            self.sent[topic].append(self._last)
        return self._last

    def rows(self, count: int, *topics: str, **values: Any) -> list[dict[str, Any]]:
        numbers = [self.number(*topics) for _ in range(count)]
        return [{"vin": f"V{number % 3}", "seq": number, "speed": number / 2, **values} for number in numbers]

    @contextmanager
    def publishing(self, who: Session, *topics: str, **settings: Any) -> Iterator[Publisher]:
        chosen = {"acks": "anchored", "anchor_check_s": 0.0, "linger_s": 0.0, **settings}
        publisher = who.publisher(topics if len(topics) > 1 else topics[0], background=False, **chosen)
        yield publisher
        assert publisher.flush(120) == 0
        publisher.close()

    def publish(self, who: Session, *topics: str, lost: bool = False, **settings: Any) -> None:
        """Two rows in a parcel, which will be `lost` to readers or not."""
        with self.publishing(who, *topics, **settings) as publisher:
            publisher.send(self.rows(2, *(() if lost else topics)))

    def publish_in_every_way(self) -> None:
        for codec in NAMES:
            self.publish(self.car, "brakes", codec=codec)
        self.publish(self.car, "brakes", "tyres")
        self.publish(self.car, "quiet")
        self.publish(self.car, "notes")
        self.publish(self.van, "notes", lost=True)  # it is erased, after the backup
        with self.publishing(self.van, "brakes", lanes=3, key="vin", lane_parcels_max=2) as publisher:
            for _ in range(3):
                publisher.send(self.rows(3, "brakes"))
                publisher.poll()
        with self.publishing(self.van, "labelled") as publisher:
            publisher.send([*self.rows(1, "labelled"), *self.rows(1, "labelled", speed=150.0)])
        with self.publishing(self.car, "brakes", heartbeat_s=30.0) as publisher:
            publisher.send(self.rows(1, "brakes"))
            publisher.flush(60)
            self.pass_time(31)
            publisher.poll()
        with self.publishing(self.car, "brakes", when_full="gap", spool_bytes_max=500) as publisher:
            publisher.send(self.rows(1, "brakes", vin="V" * 600))
            publisher.send(self.rows(3))  # there is no room, and the gap says so
            publisher.poll()
        with self.publishing(self.car, "tyres") as publisher:  # late: the node is away for an hour
            publisher.send(self.rows(1, "tyres"))
            publisher.flush(60)
            self.stack.stop_node()
            publisher.send(self.rows(1, "tyres"))
            publisher.poll()
            self.clock.jump(HOUR_S)
            self.stack.start_node()
            self.pass_time(1)

    def write_together(self) -> None:
        """Rows that count together, and rows that never came to count."""
        folder, token = self.car.identity.home / "writes", self.tokens["sums"]
        write = (sha256(b"a write").digest(), 0)

        def part(name: str, *topics: str) -> Any:
            with held(folder / name):
                return PartWriter(self.car, "sums", folder / name).write(write, iter([self.rows(2, *topics)]))

        runs = (*part("a", "sums"), *part("b", "sums"))
        part("b")
        Committer(self.car, "sums", folder / "commits").commit(CommitList(token, *write, runs))

    def lock_by_attributes(self) -> None:
        """A topic's policy and publishers' own, in the clear and hidden."""
        attributes, token = Attributes(self.stack, self.owner), self.tokens["drives"]
        self.stack.grant(self.owner, token, self.clerk, READ)
        attributes.give(self.reader, role="police", clearance=7)
        attributes.give(self.clerk, role="garage")
        attributes.set_policy(token, 1, "role::police")
        for policy, hide in (("role::insurer || clearance >= 5", False), ("role::garage", True)):
            with self.publishing(self.car, "drives", policy={"fuel": policy}, hide_policy=hide) as publisher:
                publisher.send([{"seq": self.number("drives"), "speed": 1.5, "lat": 52.5, "fuel": 0.5}])
        attributes.give(self.thief, clearance=9)
        attributes.take(self.thief, "clearance")

    # What people do to one another.

    def take_offence(self) -> None:
        token = self.tokens["brakes"]
        assert reason(self.rival.node.publish(token, [JUNK])[0]) == "plain"  # without a right: held against it
        nobody = exchange(self.rival, "GET", f"/v1/topics/{token.hex()}", key=self.liar.identity.signing_key)
        assert nobody.status == 403  # junk, for all that the node can say
        self.stack.grant(self.owner, token, self.liar, WRITE)
        hand = Hand(self.liar, "brakes")
        twice = hand.fork()
        stored(hand.send(hand.seal(self.number("brakes")))[0])
        reason(hand.send(hand.seal(self.number(), lane=twice))[0])
        wait_until(lambda: bool(self.stack.node.ledger.scan(EQUIVOCATIONS)))
        self.as_operator(entries.lift(self.liar.identity.principal))
        node, keys = self.stack.node, self.stack.node.keys
        never = Promise(node.trust.instance, node.identifier, token, 0, 1 << 20, sha256(b"never").digest(), 1, 1)
        self.rival.author.write(entries.broken_promise(never.sign(keys.key)))
        self.owner.authority.revoke(self.thief.identity.principal)

    def as_operator(self, *written: bytes) -> None:
        authority = self.stack.authority.authority
        with authority.core.store.transaction():
            place = authority.core.queue(list(written))
        authority.settle(place)

    def change_keys_and_rights(self) -> None:
        """New keys, epochs and schema versions; permits given back and taken away."""
        self.publish(self.car, "brakes")
        self.owner.authority.rotate(self.tokens["brakes"])
        self.pass_time(2)
        identity = rekey(self.van.identity, clock=self.clock, entropy=SeededEntropy("van's new keys"))
        self.van = self.stack.session(identity)
        wider = Schema.parse(SCHEMA + ", trailer bool", version=2)
        token, owner = self.tokens["tyres"], self.owner.identity
        version, digest = self.owner.authority.propose_schema(token, wider.encode())
        self.owner.author.write(entries.schema(owner.instance, token, version, digest, owner.signing_key))
        wait_until(lambda: len(self.owner.authority.schemas(token)) == 2)
        with self.publishing(self.van, "tyres") as publisher:
            publisher.send(self.rows(1, "tyres", trailer=True))
        self.publish(self.van, "brakes")
        with self.clerk.subscriber("brakes", start="latest") as subscriber:
            subscriber.unsubscribe()
        with self.clerk.subscriber("brakes", start="latest"):
            self.stack.withdraw(self.owner, self.tokens["brakes"], self.clerk, READ)
        self.pass_time(2)

    def read_as_a_group(self) -> None:
        with self.reader.subscriber("brakes", group="pipeline", on_bad="report", silence_s=1e9) as subscriber:
            wait_until(lambda: bool(subscriber.poll(50)))
            while subscriber.poll(50):
                pass
            subscriber.commit()
        token, tenant = self.tokens["brakes"], self.owner.identity.tenant
        name = group_id(tenant, "pipeline")
        fence = self.stack.node.ledger.query(lambda state: state.get(b"group/" + name))[3]
        offset = self.stack.node.ledger.query(lambda state: state.get(b"offset/" + name + token + bytes(4)))[0]
        self.owner.author.write(entries.reset_offset(name, token, 0, fence=fence, old=offset, new=offset - 1))

    def operate(self) -> None:
        """What the operator and the root write, and a notary in place of the node."""
        self.as_operator(entries.set_("rise_max", 20), entries.activate("writes", 1, 1 << 40))
        trust = replace(self.stack.node.trust, number=2, first=self.stack.node.trust.instance, signatures=())
        signed = trust.sign(open_root(self.stack.folders.root, PASSPHRASE))
        self.owner.author.write(entries.trust(signed.to_json()))
        token = self.tokens["old"]
        self.owner.author.write(entries.assign(token, 0, [self.stack.node.identifier]))
        self.hold_back()
        hand = Hand(self.car, "old")
        for _ in range(8):
            stored(hand.send(hand.seal(self.number("old")))[0])
        self.in_the_node_s_turn(lambda: self.notarise(token))

    def notarise(self, token: bytes) -> None:
        carrier = self.stack.node.carrier
        before, size = carrier.ends(token, 0)
        root = carrier.storage.tree(Place(token, 0)).root(size)
        self.write_as_node(entries.notarise(token, 0, size, root, before=before))

    def write_as_node(self, entry: bytes) -> None:
        write_as_node(self.stack.node, entry)

    def hold_back(self, work: Callable[[], None] = lambda: None) -> None:
        """From now on nothing goes from the node's journal to the ledger; `work` is done instead, once."""
        todo = [work]

        def commit() -> bool:
            while todo:
                todo.pop()()
            return False

        self.stack.node.core.commit = commit
        wait_until(lambda: not todo)

    def in_the_node_s_turn(self, work: Callable[[], None]) -> None:
        """By the thread that numbers the node's transactions, or they might overtake one another."""
        self.hold_back(work)
        del self.stack.node.core.commit

    def retire_a_topic(self) -> None:
        settle(self.stack)
        token, storage = self.tokens["old"], self.stack.node.carrier.storage
        place = Place(token, 0)
        let_go = entries.release(token, 0, storage.end(place) - 1)
        self.owner.author.write(entries.retain(token, Retention(parcels=1)), let_go)
        wait_until(lambda: storage.tree(place).below > 0)  # the node does it by itself
        self.sent["old"] = self.sent["old"][storage.tree(place).below :]
        self.owner.author.write(entries.close_topic(token))

    # Putting away.

    def back_up(self) -> None:
        self.age = pyrage.x25519.Identity.generate()
        self.backup = self.stack.authority.authority.back_up([str(self.age.to_public())])

    def go_on_after_the_backup(self) -> None:
        """What a restored authority must learn from the ledger; and a proof, for anybody."""
        self.owner.authority.erase(self.tokens["notes"], self.van.identity.principal, [])
        self.stack.principal("acme", "newcomer")
        self.owner.authority.rotate(self.tokens["quiet"])
        self.pass_time(2)
        self.publish(self.car, "quiet")
        self.invite = self.stack.authority.authority.enrolment.invite_to("acme")
        settle(self.stack)
        self.proof = self.reader.prove("tyres", 0, 0, 1).encode()

    def leave_things_waiting(self) -> None:
        """In the journal acts that the ledger does not know, in the spool parcels that the node does not."""
        car = self.car.publisher("brakes", background=False, linger_s=0.0)
        car.send(self.rows(1, "brakes"))
        wait_until(lambda: car.poll() >= 0 and car._pending == 0)
        settle(self.stack)
        self.hold_back()
        van = self.van.publisher("tyres", background=False, linger_s=0.0)
        van.send(self.rows(1, "tyres"))
        wait_until(lambda: van.poll() >= 0 and van._pending == 0)
        van.stop()
        self.stack.stop_node()
        for _ in range(3):
            car.send(self.rows(1, "brakes"))
            car.poll()
        assert car._pending == 3
        car.stop()


def make(history: History, folder: Path) -> None:
    """Let the instance live and put it away; then look at a copy of what was put away, and write down what is there."""
    clock = PastClock(START)
    with Stack(folder, clock=clock, passphrase=PASSPHRASE, keys_from=SeededEntropy, authority=AUTHORITY) as stack:
        story = Story(stack, clock)
        story.tell()
    for home in (folder / "homes").iterdir():
        if home.name not in HOMES:
            shutil.rmtree(home)
    settings = "".join(f"{name} = {value}\n" for name, value in AUTHORITY.items())
    (folder / "authority" / "authority.toml").write_text("format = 1\n" + settings)
    history.folder.mkdir(exist_ok=True)
    history.pack(folder)
    for name, content in {
        "authority.age": story.backup.data,
        "age.key": f"{story.age}\n".encode(),
        "passphrase": PASSPHRASE + b"\n",
        "row.proof": story.proof,
    }.items():
        (history.folder / name).write_bytes(content)
    tokens = {name: token.hex() for name, token in story.tokens.items()}
    facts: Found = {
        "end_ms": int(clock.now() * 1000),
        "codecs": sorted(NAMES),
        "topics": tokens,
        "invite": story.invite,
    }
    write(history, facts)
    copy = history.unpack(folder / "copy")
    facts |= {"readers": READERS, "at_rest": look(copy)}
    with history.stack(copy) as stack:
        facts["read"] = live(stack, READERS)
    for topic, numbers in story.sent.items():
        got = [row["seq"] for _, _, rows in facts["read"]["reader"][topic]["batches"] for row in rows]
        assert sorted(got) == sorted(numbers), (topic, got, numbers)
    restore(story.backup.data, str(story.age), folder / "restored")
    facts["backup"] = look_at_authority(folder / "restored")
    write(history, facts)


def make_contracts(history: History, folder: Path) -> None:
    """The ledger alone, and what every later version must make of it."""
    ContractStory(folder).tell()
    history.folder.mkdir(exist_ok=True)
    history.pack(folder)
    write(history, look_at_ledger(history.unpack(folder / "copy")))


def make_mesh(history: History, folder: Path) -> None:
    """An authority with a publisher and two readers on the mesh, of whom one was revoked, and the owner's terms."""
    world = World(folder)
    owner = world.tenant()
    token = world.topic(owner)
    for number, (name, operation) in enumerate((("car", 2), ("reader", 1), ("clerk", 1)), 1):
        person = world.member(name)
        world.grant(owner, token, person, WRITE if operation == 2 else READ)
        lasting = ExchangeKey(bytes([number]) * 32).public
        person.client.mesh(MeshRequest(token, operation, 16, lasting))
    owner.client.mesh(MeshRequest(token, terms=(1, 20)))
    world.withdraw(owner, token, person, READ)
    world.authority.close()
    world.ledger.close()
    history.folder.mkdir(exist_ok=True)
    history.pack(folder)
    write(history, look_at_mesh(history.unpack(folder / "copy")))


def write(history: History, facts: Found) -> None:
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (history.folder / "expected.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    history = History(sys.argv[1])
    changelog = (HERE.parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
    if history.version not in (CURRENT, CONTRACTS, MESH):
        sys.exit(f"this is version {CURRENT}: a history is written by its own version")
    if history.folder.exists() and f"## {CURRENT} (unreleased)" not in changelog:
        sys.exit(f"version {CURRENT} is released: its history stays as it is")
    log_server.LogStore = functools.partial(LogStore, limits=LogLimits(segment_bytes_max=SEGMENT_BYTES))  # type: ignore[attr-defined, assignment]
    with TemporaryDirectory() as folder:
        {CONTRACTS: make_contracts, MESH: make_mesh}.get(history.version, make)(history, Path(folder))
    for path in sorted(history.folder.iterdir()):
        print(f"{path.stat().st_size:>9} {path.name}")


if __name__ == "__main__":
    main()
