"""The cache of rights: quick, bounded, and told of a revocation before its entries expire."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ledger_world import HOME, HOSPITAL, NOW_MS, Actor, Bench, World, token
from ledger_world import bench as bench
from ledger_world import world as world
from overlay_ledger import OverlayWorld

from tallystick.carriers.kafka.ledger import Carried, NotaryLedger
from tallystick.carriers.rules import LedgerRules, RightsCache
from tallystick.errors import Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts import access
from tallystick.ledger.contracts.access import RightRow
from tallystick.ledger.contracts.state import Key
from tallystick.ledger.contracts.topics import HOSTS
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.conversation import RequestSigner
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.right import Right

HEART, AIR = token("heart"), token("air")
READ = Right.READ


def rules(cache: RightsCache, now_ms: int) -> LedgerRules:
    """As the guards see the ledger, through a cache."""
    return LedgerRules(b"", lambda key: cache.get(key, now_ms))


def test_a_revocation_reaches_the_cache_with_its_block(tmp_path: Path) -> None:
    world = World()
    ledger = SqliteLedger(str(tmp_path / "l.db"), world.trust, world.ledger_key, NOW_MS)
    cache = RightsCache(lambda key: ledger.query(lambda state: state.row(key)))
    deaf = RightsCache(lambda key: ledger.query(lambda state: state.row(key)), expiry_ms=10_000)
    ledger.on_block(cache.invalidate)
    for transaction in [
        *world.founding(),
        world.doctor.sign(entries.grant(HEART, world.monitor.id, READ)),
    ]:
        ledger.submit(transaction.data, NOW_MS)
    ledger.flush(NOW_MS)

    def ask(which: RightsCache, now_ms: int, who: bytes = world.monitor.id) -> bool:
        return rules(which, now_ms).allows(who, HEART, READ, "10.0.0.1")

    def topics() -> list[bytes]:
        """Algorithm 4 of BPS, from the cache."""
        return access.indexed(cache.get(access.INDEXES(world.monitor.id), NOW_MS), READ)

    assert ask(cache, NOW_MS)
    assert ask(deaf, NOW_MS)
    assert topics() == [HEART]
    assert not ask(cache, NOW_MS, world.sensor.id)
    assert not rules(cache, NOW_MS).blacklisted(world.monitor.id)
    ledger.submit(world.doctor.sign(entries.withdraw(HEART, world.monitor.id, READ)).data, NOW_MS)
    ledger.flush(NOW_MS)
    assert not ask(cache, NOW_MS)
    assert topics() == []
    assert ask(deaf, NOW_MS + 9_999), "without the block it serves the old right"
    assert not ask(deaf, NOW_MS + 10_000), "but no longer than its expiry"
    ledger.close()


def test_it_asks_once_within_the_expiry_and_stays_bounded() -> None:
    asked: list[bytes] = []

    def load(key: Key[RightRow]) -> object:
        asked.append(key)
        return key.read([0, [[1, 1, "*"]]])

    cache = RightsCache(load, expiry_ms=100, keys_max=2)
    for now in (0, 50, 99):
        assert rules(cache, now).allows(b"p", b"a", READ, "h")
    assert len(asked) == 1
    for name in (b"b", b"c", b"a"):
        rules(cache, 99).allows(b"p", name, READ, "h")
    assert asked[-1] == b"right/ap", "the oldest made room"


def test_what_cannot_be_asked_is_not_allowed() -> None:
    def load(key: bytes) -> object:
        raise Unavailable("ledger: out of reach")

    with pytest.raises(Unavailable):
        rules(RightsCache(load), 0).allows(b"p", b"t", READ, "h")


def test_a_node_carries_what_names_it_by_topic_or_by_partition(bench: Bench, world: World) -> None:
    other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    bench.play((other, entries.enrol(other.certificate), None))
    mine, others = (
        LedgerRules(world.instance, bench.state.row, node=node.id, tenants=[HOME] if node is other else [])
        for node in (world.node, other)
    )
    assert (mine.carried(AIR), others.carried(AIR), mine.carries(AIR, 4)) == (0, None, False)
    assert (mine.carried(token("none")), mine.consents(HOSPITAL)) == (None, True)
    assert (others.consents(HOSPITAL), others.consents(HOME)) == (False, True)

    def assign(partition: int, node: Actor) -> None:
        bench.play((world.landlord, entries.assign(AIR, partition, [node.id]), None))
        for one in (mine, others):
            one.learn_moved([HOSTS(AIR, partition)])

    assign(0, other)
    assign(3, other)
    assert (mine.carried(AIR), mine.carries(AIR, 0)) == (1, False)
    assert (others.carries(AIR, 3), others.carries(AIR, 1)) == (True, False)
    assign(3, world.node)
    assert (mine.carried(AIR), others.carried(AIR)) == (3, 0)
    assign(0, world.node)
    assert others.carried(AIR) is None


def test_what_travels_over_an_overlay_is_carried_by_its_relays(bench: Bench, world: World) -> None:
    overlay = OverlayWorld(world)
    overlay.stand(bench)
    mine, relay = (LedgerRules(world.instance, bench.state.row, node=one.id) for one in (world.node, overlay.edge[1]))
    assert (mine.carries(HEART, 0), relay.carries(HEART, 0)) == (False, True)
    assert (mine.carries(AIR, 0), relay.carries(AIR, 0)) == (True, False)
    bench.accept(world.doctor.sign(entries.take_back(HEART)))
    assert (mine.carries(HEART, 0), relay.carries(HEART, 0)) == (True, False)


def test_a_notary_makes_only_what_names_it_for_tenants_that_it_serves(tmp_path: Path) -> None:
    world = World()
    other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    with closing(SqliteLedger(str(tmp_path / "l.db"), world.trust, world.ledger_key, NOW_MS)) as ledger:
        for transaction in [
            *world.founding(),
            other.sign(entries.enrol(other.certificate)),
            world.landlord.sign(entries.assign(AIR, 3, [other.id])),
        ]:
            ledger.submit(transaction.data, NOW_MS)
        ledger.flush(NOW_MS)

        def carried(node: Actor, *tenants: bytes) -> dict[bytes, Carried]:
            rules = LedgerRules(world.instance, lambda key: ledger.query(lambda state: state.row(key)), tenants=tenants)
            host: Any = SimpleNamespace(
                ledger=ledger, signer=RequestSigner(node.id, node.key), rules=rules, write=lambda written: 0
            )
            return NotaryLedger(host).topics()

        assert carried(world.node).keys() == {HEART, AIR}
        assert carried(world.node, HOME).keys() == {AIR}
        assert carried(other).keys() == {AIR}
        topic = carried(other)[AIR]
        assert [*topic.nodes_of(0)] == [world.node.id]
        assert [*topic.nodes_of(3)] == [other.id]
