"""Links of the mesh: messages arrive once or are known lost; what an observer sees at each setting of the dial; who may
not speak on a link; strangers, restarts, silence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from link_world import LIMITS, LinkWorld, Seen, lasting, name_of
from makers import seed as bytes_of
from without import without

from tallystick.carriers.mesh.cells import CELL_BYTES
from tallystick.carriers.mesh.link_keys import NOBODY, Knock, agree_lasting, seal_knock
from tallystick.carriers.mesh.link_layer import Dial
from tallystick.carriers.mesh.linked import LinkLost
from tallystick.crypto.exchange import ExchangeKey
from tallystick.errors import Malformed
from tallystick.runtime.effects import WakeAt, Woken
from tallystick.runtime.network import Link
from tallystick.runtime.sources import SeededEntropy

ROUGH = Link(loss=0.3, duplicate=0.1, reorder=0.3, held_max_s=2.5)


def chatter(random: Random, who: str, to: str, count: int = 40) -> list[tuple[float, str, bytes]]:
    """Messages of all lengths and both kinds, each of its own."""
    kinds = random.choices([b"notify", b"control"], k=count)
    sizes = random.choices([0, 40, 400, 1100, 6000], k=count)
    spoken = enumerate(zip(kinds, sizes, strict=True))
    return [(3 + 0.3 * n, to, b"%s %s %d " % (kind, who.encode(), n) + bytes(size)) for n, (kind, size) in spoken]


@pytest.mark.parametrize("dial", Dial)
def test_every_message_arrives_once_over_links_that_lose_repeat_and_reorder(dial: Dial, seed: int) -> None:
    world = LinkWorld(seed, dial, ROUGH, replace(LIMITS, message_beats_max=300))
    scripts = {who: chatter(Random(f"{seed} {who}"), who, to) for who, to in (("anna", "bert"), ("bert", "anna"))}
    world.add("anna", "bert", script=scripts["anna"])
    world.add("bert", "anna", script=scripts["bert"])
    world.run(200)
    for who, to in (("anna", "bert"), ("bert", "anna")):
        assert Counter(world.heard(to)) == Counter(message for _, _, message in scripts[who])
        assert world.losses(who) == []


def test_a_beat_that_was_missed_is_not_made_up() -> None:
    """Whoever is late, and beat all the more for it, would hear the less."""
    world = LinkWorld()
    world.add("anna", "bert")
    world.add("bert", "anna")
    late = 10 + 7.5 * LIMITS.beat_s
    effects = world.run(10).layer("anna").receive(Woken(), late)
    assert [one for one in effects if isinstance(one, WakeAt)] == [WakeAt(late + LIMITS.beat_s)]


def test_on_a_link_that_hardly_carries_a_message_arrives_or_is_known_lost(seed: int) -> None:
    world = LinkWorld(seed, Dial.PADDED, Link(loss=0.85, duplicate=0.1), replace(LIMITS, message_beats_max=12))
    script = chatter(Random(seed), "anna", "bert")
    world.add("anna", "bert", script=script)
    world.add("bert", "anna")
    world.run(80)
    heard = Counter(world.heard("bert"))
    lost = {message for one in world.losses("anna") for message in one.messages}
    assert lost
    assert max(heard.values(), default=1) == 1
    assert set(heard) | lost == {message for _, _, message in script}


# --- what an observer sees ---


def seen(dial: Dial, script: list[tuple[float, str, bytes]]) -> list[Seen]:
    """Times and sizes of everything on three nodes in a row, of which the first has this to say."""
    world = LinkWorld(dial=dial, link=Link(loss=0.1))
    world.add("anna", "bert", script=script)
    world.add("bert", "anna", "carl")
    world.add("carl", "bert")
    world.run(30)
    assert len(world.heard("bert")) == len(script)
    return world.network.seen


CONTROL = [(5.0 + n, "bert", b"control" + bytes(100 * n)) for n in range(9)]
NOTIFIED = [(5.3 + n, "bert", b"notify" + bytes(2000)) for n in range(9)]


def test_at_a_constant_rate_nothing_that_is_said_can_be_seen() -> None:
    silence = seen(Dial.CONSTANT, [])
    assert seen(Dial.CONSTANT, sorted(CONTROL + NOTIFIED)) == silence
    assert {one.size for one in silence} == {CELL_BYTES}
    per_beat = Counter((one.sender, one.to, one.time) for one in silence)
    assert set(per_beat.values()) == {LIMITS.beat_cells}  # on every link of every node, in each of its beats
    times = sorted({one.time for one in silence if one.sender == name_of("carl")})
    assert {round(later - earlier, 6) for earlier, later in pairwise(times)} == {LIMITS.beat_s}


def test_padded_control_cannot_be_seen_and_notifications_can() -> None:
    silence = seen(Dial.PADDED, [])
    assert seen(Dial.PADDED, CONTROL) == silence
    with_notifications = seen(Dial.PADDED, NOTIFIED)
    assert {one.size for one in with_notifications} == {CELL_BYTES}
    extra = Counter(with_notifications) - Counter(silence)
    assert {one.time for one in extra} >= {time for time, _, _ in NOTIFIED}  # the price of sending them at once


def test_with_the_dial_off_times_and_sizes_tell_all() -> None:
    silence, spoken = seen(Dial.OFF, []), seen(Dial.OFF, CONTROL)
    extra = Counter(spoken) - Counter(silence)
    assert {one.time for one in extra} >= {time for time, _, _ in CONTROL}
    assert {one.to for one in extra if one.time in {time for time, _, _ in CONTROL}} == {name_of("bert")}
    assert len({one.size for one in extra}) >= len(CONTROL)


def test_the_price_of_each_setting() -> None:
    """Bytes heard for each byte sent: nobody gets the constant rate for nothing."""
    shares = []
    for dial in Dial:
        world = LinkWorld(dial=dial)
        world.add("anna", "bert", script=sorted(CONTROL + NOTIFIED))
        world.add("bert", "anna")
        world.run(30)
        shares.append(world.layer("bert").statistics().bytes_heard / world.layer("anna").statistics().bytes_sent)
    off, padded, constant = shares
    assert off > 0.6 > 0.2 > padded
    assert 0.2 > constant > 0.1


def test_nothing_stands_in_the_clear_and_no_two_datagrams_are_alike() -> None:
    world = LinkWorld()
    same = b"notify " + b"the same words " * 20
    world.add("anna", "bert", script=[(5.0 + n, "bert", same) for n in range(5)])
    world.add("bert", "anna")
    world.run(20)
    sent = world.datagrams("anna", "bert")
    assert world.heard("bert") == [same] * 5
    assert len({data[:32] for data in sent}) == len({data[32:64] for data in sent}) == len(sent) > 60
    names = [lasting(who).public for who in ("anna", "bert")] + [bytes.fromhex(name_of("anna"))]
    told = [b"the same words", *names, bytes(16)]
    assert not any(words in data for data in sent for words in told)


# --- who may not speak ---


def test_cells_of_another_link_are_dropped(seed: int) -> None:
    """Sent once more, sent back, sent from elsewhere: no message comes of it."""
    world = LinkWorld(seed)
    world.add("anna", "bert", script=[(5.0, "bert", b"notify bert"), (5.0, "bert", b"control")])
    world.add("bert", "anna", "carl")
    world.add("carl", "bert", "anna")
    world.run(10)
    for data in list(world.datagrams("anna", "bert")):
        for sender, to in (("anna", "bert"), ("bert", "anna"), ("carl", "bert"), ("carl", "anna"), ("anna", "carl")):
            world.network.send(name_of(sender), name_of(to), data)
    world.run(20)
    assert sorted(world.heard("bert")) == [b"control", b"notify bert"]
    assert world.heard("anna") == world.heard("carl") == []
    assert world.layer("carl").dropped["cannot-open"] > 0


def replayed_after_a_restart() -> list[bytes]:
    """What bert hears, to whom everything that anna once sent is sent again, a little slower than she did."""
    world = LinkWorld()
    world.add("anna", "bert", script=[(5.0, "bert", b"notify once")])
    world.add("bert", "anna")
    world.run(10)
    times = [one.time for one in world.network.seen if one.sender == name_of("anna")]
    recorded = list(zip(times, world.datagrams("anna", "bert"), strict=True))
    for who in ("anna", "bert"):
        world.network.crash(name_of(who))
    world.network.restart(name_of("bert"))
    for time, data in recorded:
        world.run(11.5 + 1.3 * time)
        world.network.send(name_of("anna"), name_of("bert"), data)
    return world.run(30).heard("bert")


def test_what_was_recorded_means_nothing_to_a_node_that_was_restarted() -> None:
    assert replayed_after_a_restart() == [b"notify once"]
    with without("the fresh keys of a link"):
        assert replayed_after_a_restart() == [b"notify once"] * 2


def revived() -> list[bytes]:
    """What bert hears, to whom anna, who was restarted, is shown as she was before: her knocks, then her cells."""
    world = LinkWorld()
    world.add("anna", "bert", script=[(5.0, "bert", b"notify once")])
    world.add("bert", "anna")
    world.run(10)
    recorded = list(world.datagrams("anna", "bert"))
    world.network.crash(name_of("anna"))
    world.network.restart(name_of("anna"))
    for _ in range(3):
        world.run(world.network.clock.now() + 5)
        for data in recorded:
            world.network.send(name_of("anna"), name_of("bert"), data)
    return world.run(40).heard("bert")


def test_a_session_that_is_over_is_not_made_again_of_what_was_recorded() -> None:
    assert revived() == [b"notify once"]
    with without("the sessions that are over"):
        assert len(revived()) > 1


def reflected() -> list[bytes]:
    """What anna hears, to whom a cell of hers is sent back in bert's name."""
    world = LinkWorld()
    world.add("anna", "bert", script=[(20.0, "bert", b"notify bert"), (20.1, "bert", b"notify more")])
    world.add("bert", "anna")
    world.run(19.9)
    before = len(world.datagrams("anna", "bert"))
    world.run(20.2)
    for data in world.datagrams("anna", "bert")[before:]:
        world.network.send(name_of("bert"), name_of("anna"), data)
    return world.run(30).heard("anna")


def test_what_a_node_sends_cannot_be_sent_back_to_it() -> None:
    assert reflected() == []
    with without("the two directions of a link"):
        assert reflected() != []


def test_a_neighbour_that_floods_is_heard_so_much_in_a_beat_and_no_more() -> None:
    world = LinkWorld(limits=replace(LIMITS, cells_max=20, message_beats_max=100))
    spoken = [(5.0, "bert", b"notify %d " % n + bytes(1000)) for n in range(100)]
    world.add("anna", "bert", script=spoken)
    world.add("bert", "anna")
    world.run(5.1)
    assert world.layer("bert").dropped["too-many-cells"] > 0
    assert len(world.heard("bert")) <= 40  # a beat of bert's may lie between
    assert Counter(world.run(60).heard("bert")) == Counter(message for _, _, message in spoken)  # honest ones wait


def test_changed_short_and_oversized_datagrams_are_dropped_and_counted() -> None:
    world = LinkWorld()
    world.add("anna", "bert")
    world.add("bert", "anna")
    world.run(10)
    data = world.datagrams("anna", "bert")[-1]
    for bad in (b"", data[:40], data + b"\x00", bytes([data[0] ^ 1]) + data[1:], data[:-1] + bytes([data[-1] ^ 1])):
        world.network.send(name_of("anna"), name_of("bert"), bad)
    world.run(11)
    dropped = world.layer("bert").dropped
    assert dropped["oversized"] == 1
    assert sum(dropped.values()) == 5


# --- restarts, silence, strangers ---


def test_a_restarted_neighbour_gets_what_its_earlier_life_did_not_acknowledge() -> None:
    world = LinkWorld(dial=Dial.CONSTANT)
    world.add("anna", "bert", script=[(5.0, "bert", b"control" + bytes(20_000)), (12.0, "bert", b"after")])
    world.add("bert", "anna")
    world.run(8)  # some of its pieces are acknowledged
    world.network.crash(name_of("bert"))
    world.network.restart(name_of("bert"))
    world.run(40)
    assert sorted(map(len, world.heard("bert"))) == [5, 20_007]
    assert world.losses("anna") == []


def test_a_silent_neighbour_is_lost_once_with_what_waits_for_it_and_may_come_back() -> None:
    world = LinkWorld()
    world.add("anna", "bert", script=[(5.0, "bert", b"first"), (9.0, "bert", b"too late"), (50.0, "bert", b"again")])
    world.add("bert", "anna")
    world.run(8)
    world.network.partition([name_of("anna")], [name_of("bert")])
    world.run(30)
    assert world.losses("anna") == [LinkLost((b"too late",), is_silent=True)]
    assert world.losses("bert") == [LinkLost((), is_silent=True)]
    world.network.heal()
    world.run(60)
    assert world.heard("bert") == [b"first", b"again"]
    assert len(world.losses("anna")) == 1


def test_who_never_answers_is_lost() -> None:
    world = LinkWorld()
    world.add("anna", "bert", script=[(1.0, "bert", b"hello"), (2.0, "carl", b"no neighbour")])
    world.add("bert")
    world.network.crash(name_of("bert"))
    world.run(20)
    assert world.losses("anna") == [LinkLost((b"no neighbour",)), LinkLost((b"hello",), is_silent=True)]


def test_a_newcomer_is_heard_by_whom_it_knows_and_answered() -> None:
    world = LinkWorld()
    world.add("anna", "bert", script=[(0.5, "bert", b"let me in")])
    world.add("bert", script=[(6.0, "anna", b"welcome")])  # it keeps no link with anna
    world.run(10)
    assert world.heard("bert", by="anna") == [b"let me in"]
    assert world.heard("anna", by="bert") == [b"welcome"]


def test_nobody_speaks_in_anothers_name() -> None:
    """A knock with anna's lasting key, by who has not its private half."""
    world = LinkWorld()
    world.add("bert")
    world.add("mallory")
    world.run(2)
    forged = seal_knock(
        Knock(bytes_of("fresh"), NOBODY, bytes(8)),
        own=_Pretender(lasting("anna").public),
        peer=lasting("bert").public,
        agreed=bytes_of("a guess"),
        entropy=SeededEntropy(1),
    )
    world.network.send(name_of("mallory"), name_of("bert"), forged)
    world.run(10)
    assert world.layer("bert").statistics().links == 0
    assert world.datagrams("bert", "mallory") == []


class _Pretender(ExchangeKey):
    """Shows another's public key."""

    def __init__(self, public: bytes) -> None:
        super().__init__(bytes_of("mallory"))
        self.public = public


def knocks(count: int, shown: bytes = b"a member") -> list[bytes]:
    """Of as many strangers, all to bert, none of whom will answer."""
    bert, found = lasting("bert").public, []
    for number in range(count):
        own = ExchangeKey(bytes_of(f"stranger {number}"))
        knock = Knock(ExchangeKey(bytes_of(f"fresh {number}")).public, NOBODY, bytes(8), shown)
        found.append(seal_knock(knock, own, bert, agree_lasting(own, bert), SeededEntropy(number)))
    return found


def test_who_is_no_member_has_no_link() -> None:
    def links() -> int:
        world = LinkWorld()
        world.add("bert")
        world.add("mallory")
        world.run(3)
        for data in knocks(1, shown=b"no member"):
            world.network.send(name_of("mallory"), name_of("bert"), data)
        return world.run(5).layer("bert").statistics().links

    assert links() == 0
    with without("the members' pass"):
        assert links() == 1


def test_strangers_take_a_few_places_and_are_sent_no_more_than_they_send() -> None:
    world = LinkWorld()
    world.add("bert", "anna")
    world.add("anna", "bert", script=[(6.0, "bert", b"still here")])
    world.add("mallory")
    world.run(4)
    for data in knocks(50):
        world.network.send(name_of("mallory"), name_of("bert"), data)
    world.run(4.9)
    assert world.layer("bert").statistics().links <= 1 + LIMITS.strangers_max
    world.run(30)
    assert world.layer("bert").statistics().links == 1
    assert len(world.datagrams("bert", "mallory")) <= 50
    assert world.heard("bert") == [b"still here"]


def test_a_flood_of_knocks_costs_no_more_than_a_beat_allows() -> None:
    world = LinkWorld(limits=replace(LIMITS, knocks_max=5))
    world.add("bert")
    world.add("mallory")
    world.run(4)
    for data in knocks(40):
        world.network.send(name_of("mallory"), name_of("bert"), data)
    world.run(5)
    assert world.layer("bert").dropped["too-many-knocks"] >= 30


def test_a_newcomer_finds_a_place_though_strangers_who_proved_nothing_took_all() -> None:
    world = LinkWorld(link=Link(delay_min_s=0.001, delay_max_s=0.002))
    world.add("bert")
    world.add("mallory")
    world.run(3)
    for data in knocks(LIMITS.strangers_max):
        world.network.send(name_of("mallory"), name_of("bert"), data)
    world.add("anna", "bert", script=[(4.0, "bert", b"let me in")])
    world.run(10)
    assert world.heard("bert") == [b"let me in"]


def test_keys_are_drawn_anew_and_nothing_is_lost_by_it() -> None:
    limits = replace(LIMITS, session_beats=4, message_beats_max=100)
    world = LinkWorld(dial=Dial.CONSTANT, link=Link(loss=0.2), limits=limits)
    script = chatter(Random(3), "anna", "bert")
    world.add("anna", "bert", script=script)
    world.add("bert", "anna")
    world.run(100)
    assert Counter(world.heard("bert")) == Counter(message for _, _, message in script)
    assert world.losses("anna") == []


def test_a_members_key_of_small_order_is_nobodys_neighbour() -> None:
    with pytest.raises(Malformed):
        agree_lasting(lasting("anna"), bytes(32))
    world = LinkWorld()
    world.add("anna", "bert", "nobody", script=[(1.0, "nobody", b"hello")])
    world.add("bert", "anna")
    world.run(5)
    assert world.layer("anna").statistics().links == 1
    assert world.losses("anna") == [LinkLost((b"hello",))]


def test_a_message_too_long_or_too_much_waiting_is_known_lost() -> None:
    limits = replace(LIMITS, message_bytes_max=10_000, waiting_bytes_max=12_000)
    world = LinkWorld(dial=Dial.CONSTANT, limits=limits)
    long, fits, more = bytes(10_001), b"fits" + bytes(9_000), b"more" + bytes(9_000)
    world.add("anna", "bert", script=[(4.0, "bert", long), (4.0, "bert", fits), (4.0, "bert", more)])
    world.add("bert", "anna")
    world.run(20)
    assert world.heard("bert") == [fits]
    assert world.losses("anna") == [LinkLost((long, more))]


def test_a_large_notification_takes_no_beats_unless_the_rate_is_constant() -> None:
    times = {}
    for dial in (Dial.PADDED, Dial.CONSTANT):
        world = LinkWorld(dial=dial, limits=replace(LIMITS, message_beats_max=200))
        world.add("anna", "bert", script=[(5.0, "bert", b"notify" + bytes(250_000))])
        world.add("bert", "anna")
        world.run(120)
        times[dial] = next(time for time, _, value in world.network.delivered if value[0] == "heard") - 5.0
    assert times[Dial.PADDED] < 1.0
    assert 50 < times[Dial.CONSTANT] < 70
