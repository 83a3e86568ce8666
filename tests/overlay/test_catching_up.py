"""What the ledger anchored comes from relays of which as many lie as may, and the liars are asked first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from random import Random
from typing import Any

import pytest
from carrying_world import CAR, seal_all
from makers import World, rows, token
from relay_world import RelayWorld
from sharing_world import NOW, STRANGER, key_of, relay_name
from shelves import MemoryShelf
from without import without

from tallystick import wire
from tallystick.carriers.accounts import permit_name
from tallystick.carriers.overlay.catching_up import QUESTION_BYTES, CatchingUp, CatchUpLimits
from tallystick.carriers.overlay.frames import FRAME_BYTES_MAX, FrameKind, OverlayFrame
from tallystick.carriers.overlay.proved import ANSWER_BYTES, PIECE_BYTES, FoundBlob, Proved
from tallystick.carriers.storage import Place
from tallystick.crypto.blocks import body_root
from tallystick.parcel.header import SIGNATURE_CONTEXT
from tallystick.parcel.parcel import Parcel, front_bytes
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send
from tallystick.runtime.network import Network
from tallystick.runtime.router import Rate

HERE = Place(token("brakes"), 0)
PUBLISHING = World()
ME, LIARS, HONEST = relay_name(1, 1), [relay_name(1, 2), relay_name(2, 1)], relay_name(2, 2)
RELAYS = [ME, *LIARS, HONEST]
LIMITS = CatchUpLimits(hop_wait_s=0.5)

Answer = list[list[bytes]]
Lie = Callable[[Answer, Random], Answer | None]


@cache
def parcels(count: int, lane: str = "first") -> tuple[bytes, ...]:
    made = PUBLISHING.lane(lane=token(lane))
    return tuple(one.encode() for one in seal_all(made, [rows(10 * number, 10) for number in range(count)], None))


@cache
def blobs() -> dict[bytes, bytes]:
    parcels(1), parcels(1, "second")
    permits = {permit_name(identifier): data for identifier, data in PUBLISHING.permits.items()}
    return permits | PUBLISHING.locks


@cache
def long_parcel(n_bytes: int) -> bytes:
    """As if it had been sealed so."""
    parcel, body = Parcel.decode(parcels(1)[0]), Random(n_bytes).randbytes(n_bytes)
    groups = (replace(parcel.header.groups[0], section_bytes=n_bytes),)
    header = replace(parcel.header, groups=groups, body_bytes=n_bytes, body_root=body_root(body))
    return Parcel(header, CAR.sign(SIGNATURE_CONTEXT, header.encoded), body).encode()


class Party:
    """A relay as far as catching up goes; it stores what is delivered, and may lie about what it is asked."""

    def __init__(self, name: bytes, shelf: MemoryShelf, lie: Lie | None = None, limits: CatchUpLimits = LIMITS) -> None:
        self.name, self.shelf, self.lie, self.random = name, shelf, lie, Random(name.hex())
        self.role = CatchingUp(name, shelf, lambda sender: sender in RELAYS, lambda: 1, limits)
        self.asked: list[Any] = []

    def receive(self, event: Event, now: float) -> list[Effect]:
        if not isinstance(event, Arrived):
            return self.keep(self.role.wake(now))
        frame, sender = OverlayFrame.decode(event.message), bytes.fromhex(event.sender)
        return self.keep(self.role.take(frame, sender, now))

    def keep(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Deliver) and isinstance(effect.value, Proved):
                stored = self.shelf.parcels.setdefault(effect.value.place, [])
                stored[effect.value.first :] = effect.value.parcels
            elif isinstance(effect, Deliver):
                assert isinstance(effect.value, FoundBlob)
                self.shelf.blobs[effect.value.name] = effect.value.data
        return [one for effect in effects for one in self.spoilt(effect)]

    def spoilt(self, effect: Effect) -> list[Effect]:
        if not isinstance(effect, Send):
            return [effect]
        _, question, answer = wire.decode(OverlayFrame.decode(effect.message).content)
        self.asked += [] if answer is None else [wire.decode(question)]
        if answer is None or self.lie is None:
            return [effect]
        lied = self.lie(answer, self.random)
        return [] if lied is None else [Send(effect.to, answered(question, lied))]


def answered(question: bytes, answer: Any) -> bytes:
    return OverlayFrame(FrameKind.CATCH_UP, 1, wire.encode([1, question, answer])).encode()


# --- lies ---


def silence(answer: Answer, random: Random) -> Answer | None:
    return None


def junk(answer: Answer, random: Random) -> Answer:
    return [[random.randbytes(300)], [random.randbytes(32)], [random.randbytes(40)]]


def nothing(answer: Answer, random: Random) -> Answer:
    return [[], [], []]


def no_answer_at_all(answer: Answer, random: Random) -> Answer:
    return [[b"", b""], [], []]


def another_tree(answer: Answer, random: Random) -> Answer:
    """Good parcels of the same publisher, and a good proof, of what was never anchored."""
    parts, _, permits = answer
    others = list(parcels(8, "second"))[: len(parts)]
    shelf = MemoryShelf(parcels={HERE: list(parcels(8, "second"))})
    return [others, shelf.range_proof(HERE, 0, len(others), 8) or [], permits]


def swapped(answer: Answer, random: Random) -> Answer:
    parts, *rest = answer
    return [[*reversed(parts)], *rest]


def one_left_out(answer: Answer, random: Random) -> Answer:
    parts, *rest = answer
    return [[*parts[:1], *parts[2:]], *rest]


def without_bodies(answer: Answer, random: Random) -> Answer:
    parts, *rest = answer
    return [[part[: front_bytes(part)] for part in parts], *rest]


def another_body(answer: Answer, random: Random) -> Answer:
    parts, *rest = answer
    return [[*parts[:-1], parts[-1][:-1] + b"x"], *rest]


def another_signature(answer: Answer, random: Random) -> Answer:
    def spoilt(part: bytes) -> bytes:
        return replace(Parcel.decode(part), signature=bytes(64)).encode()

    parts, *rest = answer
    return [[spoilt(part) for part in parts], *rest]


def own_permit(answer: Answer, random: Random) -> Answer:
    """The publisher's permit with another key in it, which signs the headers."""
    parts, proof, _ = answer
    key = key_of(b"liar")
    permit = replace(PUBLISHING.permit("car", "brakes"), signing_key=key.public.raw).sign(key)
    signed = [Parcel.decode(part) for part in parts]
    resigned = [replace(one, signature=key.sign(SIGNATURE_CONTEXT, one.header.encoded)).encode() for one in signed]
    return [resigned, proof, [permit.encode()]]


LIES: Sequence[Lie] = (
    silence, junk, nothing, no_answer_at_all, another_tree, swapped, one_left_out, without_bodies, another_body,
    another_signature, own_permit,
)  # fmt: skip


# --- a relay that was away ---


class Library:
    """One relay that has nothing, liars, and an honest one that is asked last."""

    def __init__(self, stored: Sequence[bytes], lie: Lie | None = nothing, limits: CatchUpLimits = LIMITS) -> None:
        self.stored = list(stored)
        self.network = Network(1)
        self.network.clock.run(NOW)
        self.me = Party(ME, MemoryShelf([*LIARS, HONEST]), None, limits)
        self.others = {name: Party(name, self.full(), lie if name in LIARS else None) for name in [*LIARS, HONEST]}
        for party in (self.me, *self.others.values()):
            self.network.add(party.name.hex(), partial(lambda party, _: party, party))

    def full(self) -> MemoryShelf:
        return MemoryShelf(parcels={HERE: list(self.stored)}, blobs=dict(blobs()))

    @property
    def now(self) -> float:
        return self.network.clock.now()

    def carry(self, effects: list[Effect]) -> None:
        for effect in self.me.keep(effects):
            self.network._carry_out(ME.hex(), effect)

    def want(self, size: int | None = None, first: int | None = None) -> None:
        size = len(self.stored) if size is None else size
        root = MemoryShelf(parcels={HERE: self.stored}).tree(HERE).root(size)
        self.carry(self.me.role.want(HERE, self.me.shelf.end(HERE) if first is None else first, size, root, self.now))

    def want_bodies(self, first: int, below: int) -> None:
        size = len(self.stored)
        root = MemoryShelf(parcels={HERE: self.stored}).tree(HERE).root(size)
        self.carry(self.me.role.want_bodies(HERE, first, below, size, root, self.now))

    def run(self, seconds: float = 5) -> None:
        self.network.run(self.now + seconds)

    @property
    def got(self) -> list[bytes]:
        return self.me.shelf.parcels.get(HERE, [])


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_it_arrives_though_liars_are_asked_first(lie: Lie) -> None:
    library = Library(parcels(8), lie)
    library.want()
    library.run()
    assert library.got == library.stored
    assert all(len(library.others[name].asked) == 1 for name in LIARS), "a liar costs one question"
    assert not library.me.role._errands


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_who_has_some_gets_the_rest(lie: Lie) -> None:
    library = Library(parcels(8), lie)
    library.me.shelf.parcels[HERE] = library.stored[:3]
    library.want(6)
    library.run()
    assert library.got == library.stored[:6]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_bodies_that_are_missing_come_though_liars_are_asked_first(lie: Lie) -> None:
    library = Library(parcels(8), lie)
    library.me.shelf.parcels[HERE] = [data[: front_bytes(data)] for data in library.stored]
    library.want_bodies(2, 5)
    library.want_bodies(3, 6)  # they are on their way
    assert len(library.me.role._errands) == 1
    library.run()
    assert library.got[2:5] == library.stored[2:5]
    assert not library.me.role._errands


def test_bodies_that_nobody_has_keep_no_others_from_coming() -> None:
    """A reader may ask for any place; the oldest wish is given up."""
    library = Library(parcels(8), nothing, replace(LIMITS, bodies_max=2))
    library.others[HONEST].lie = nothing
    for first in (0, 2, 4, 6):
        library.want_bodies(first, first + 1)
    assert [key[1] for key in library.me.role._errands if isinstance(key, tuple)] == [4, 6]


def test_without_the_range_proof_another_tree_is_taken_for_the_anchored_one() -> None:
    with without("the range proof of what is caught up with"):
        library = Library(parcels(8), another_tree)
        library.want()
        library.run()
    assert library.got == list(parcels(8, "second"))


def test_without_the_authoritys_signature_a_liar_signs_for_the_publisher() -> None:
    with without("the authority's signature on a permit that came along"):
        library = Library(parcels(8), own_permit)
        library.want()
        library.run()
    assert library.got != library.stored


def test_without_signatures_verified_a_liars_are_stored() -> None:
    with without("the signature on what is caught up with"):
        library = Library(parcels(8), another_signature)
        library.want()
        library.run()
    assert [Parcel.decode(one).hash for one in library.got] == [Parcel.decode(one).hash for one in library.stored]
    assert library.got != library.stored


def test_who_sends_little_does_not_answer_for_ever() -> None:
    def little(answer: Answer, random: Random) -> Answer:
        """One good parcel, slowly."""
        first = len(library.got)
        return [answer[0][:1], library.full().range_proof(HERE, first, first + 1, 8) or [], answer[2]]

    library = Library(parcels(8), little)
    library.want()
    library.run()
    assert library.got == library.stored
    assert [len(library.others[name].asked) for name in LIARS] == [1, 1]


def test_where_all_lie_nothing_is_taken_and_questions_become_rare() -> None:
    library = Library(parcels(8), junk)
    library.others[HONEST].lie = junk
    library.want()
    library.run(120)
    few = len(library.others[HONEST].asked)
    library.run(600)
    assert not library.got
    assert few <= 8
    assert len(library.others[HONEST].asked) - few <= 11
    library.others[HONEST].lie = None
    library.run(61)
    assert library.got == library.stored


def test_a_longer_anchor_while_an_answer_is_on_its_way() -> None:
    library = Library(parcels(8), None)
    library.want(5)
    library.want(8)
    library.run()
    assert library.got == library.stored
    asked = [one for party in library.others.values() for one in party.asked]
    assert [one[3:5] for one in asked] == [[0, 5], [5, 8]]


def test_a_run_that_is_not_wanted_any_more() -> None:
    library = Library(parcels(8), None)
    library.want()
    library.want(8, first=8)
    library.run()
    assert not library.got
    assert not library.me.role._errands


# --- many, and large ones ---


def test_many_come_in_answers_of_about_a_megabyte() -> None:
    stored = [long_parcel(300_000 + number) for number in range(9)]
    library = Library(stored, nothing)
    library.want()
    library.run()
    assert library.got == stored
    assert [one[3] for one in library.others[HONEST].asked] == [0, 3, 6]


@pytest.mark.long
def test_a_parcel_that_is_larger_than_a_frame() -> None:
    stored = [*parcels(1), long_parcel(FRAME_BYTES_MAX), parcels(2)[1]]
    library = Library(stored, silence)
    library.want()
    library.run(10)
    assert library.got == stored
    pieces = [one[5] for one in library.others[HONEST].asked if one[3] == 1]
    assert pieces == list(range(0, 9 * PIECE_BYTES, PIECE_BYTES))


@pytest.mark.parametrize("lie", [junk, another_body, another_tree], ids=lambda lie: lie.__name__)
def test_pieces_of_liars(lie: Lie) -> None:
    stored = [long_parcel(PIECE_BYTES), *parcels(1)]
    library = Library(stored, lie)
    library.want()
    library.run()
    assert library.got == stored


def test_a_piece_that_is_none() -> None:
    """A liar that sends one piece and then nothing, a byte, or the same again, costs a question."""

    def first_piece_for_ever(answer: Answer, random: Random) -> Answer:
        return [[stored[0][:PIECE_BYTES]], *answer[1:]]

    stored = [long_parcel(PIECE_BYTES)]
    library = Library(stored, first_piece_for_ever)
    library.want()
    library.run()
    assert library.got == stored
    assert all(len(library.others[name].asked) <= 5 for name in LIARS)


def test_pieces_lie_here_of_a_few_parcels_only() -> None:
    shelf = MemoryShelf([HONEST])
    me = CatchingUp(ME, shelf, lambda sender: True, lambda: 1, LIMITS)
    whole = long_parcel(PIECE_BYTES)
    full = MemoryShelf(parcels={Place(HERE.token, number): [whole] for number in range(6)}, blobs=blobs())
    honest = CatchingUp(HONEST, full, lambda sender: True, lambda: 1, CatchUpLimits(given=Rate(1.0, 1 << 40)))
    effects: list[Effect] = []
    for place in full.parcels:
        effects += me.want(place, 0, 1, full.tree(place).root(), NOW)
    done = 0
    while sends := [one for one in effects if isinstance(one, Send)]:
        assert len(sends) <= LIMITS.flights_max
        effects = []
        for send in sends:
            for answer in honest.take(OverlayFrame.decode(send.message), ME, NOW):
                assert isinstance(answer, Send)
                effects += me.take(OverlayFrame.decode(answer.message), HONEST, NOW)
            assert sum(bool(one.begun) for one in me._errands.values()) <= LIMITS.flights_max
        done += sum(isinstance(one, Deliver) and isinstance(one.value, Proved) for one in effects)
    assert done == 6


# --- bodies that were given up ---


def test_fronts_come_where_the_ledger_lets_bodies_be_given_up() -> None:
    library = Library(parcels(8), nothing)
    library.others[HONEST].shelf.given_up = library.me.shelf.let_go = 3
    library.want()
    library.run()
    fronts = [part[: front_bytes(part)] for part in library.stored[:3]]
    assert library.got == [*fronts, *library.stored[3:]]


def test_who_gave_up_more_is_passed_over() -> None:
    library = Library(parcels(8), nothing)
    library.others[LIARS[1]].lie = None
    library.others[LIARS[1]].shelf.given_up, library.me.shelf.let_go = 4, 3
    library.want()
    library.run()
    assert library.got == library.stored


def test_marks_are_left_behind() -> None:
    def marked(answer: Answer, random: Random) -> Answer:
        return [[replace(Parcel.decode(part), marks=b"mine").encode() for part in answer[0]], *answer[1:]]

    library = Library(parcels(8), marked)
    library.want()
    library.run()
    assert library.got == library.stored


# --- blobs ---


@pytest.mark.parametrize("lie", [silence, junk, nothing, no_answer_at_all], ids=lambda lie: lie.__name__)
def test_blobs_come_by_their_names(lie: Lie) -> None:
    library = Library(parcels(1), lie)
    library.carry(library.me.role.want_blobs(list(blobs()), HERE.token, library.now))
    library.run()
    assert library.me.shelf.blobs == blobs()
    assert not library.me.role._errands


def test_a_forged_permit_is_none() -> None:
    name = permit_name(PUBLISHING.permit("car", "brakes").identifier)

    def forged(answer: Answer, random: Random) -> Answer:
        return [[replace(PUBLISHING.permit("car", "brakes"), last_epoch=7).sign(key_of(b"liar")).encode()], [], []]

    library = Library(parcels(1), forged)
    library.carry(library.me.role.want_blobs([name], HERE.token, library.now))
    library.run()
    assert library.me.shelf.blobs == {name: blobs()[name]}


def test_what_nobody_has_keeps_nothing_else_waiting() -> None:
    library = Library(parcels(1), nothing)
    missing = [bytes([number]) * 32 for number in range(200)]
    library.carry(library.me.role.want_blobs([*missing, *blobs()], HERE.token, library.now))
    library.run(120)
    assert library.me.shelf.blobs == blobs()
    library.want()
    library.run()
    assert library.got == library.stored


# --- who asks ---


def asking(shelf: MemoryShelf, limits: CatchUpLimits = LIMITS) -> tuple[CatchingUp, Callable[..., int]]:
    role = CatchingUp(ME, shelf, lambda sender: sender in RELAYS, lambda: 1, limits)

    def ask(*content: Any, sender: bytes = HONEST, now: float = NOW) -> int:
        """How many bytes come back."""
        frame = OverlayFrame(FrameKind.CATCH_UP, 1, wire.encode([1, wire.encode([1, *content]), None]))
        return sum(len(one.message) for one in role.take(frame, sender, now) if isinstance(one, Send))

    return role, ask


def test_a_flood_of_questions_is_answered_within_bounds() -> None:
    shelf = MemoryShelf(parcels={HERE: [long_parcel(300_000)] * 8}, blobs=blobs())
    rate = Rate(1 << 20, 4 << 20)
    role, ask = asking(shelf, CatchUpLimits(given=rate))
    given = sum(ask(*HERE, 0, 8, 0, now=NOW + number / 100) for number in range(1_000))
    assert given <= rate.most + 10 * rate.per_s + ANSWER_BYTES
    assert role.dropped["full"] > 900
    assert ask(*HERE, 0, 8, 0, sender=LIARS[0], now=NOW + 10), "others are answered meanwhile"
    empty = sum(ask(*HERE, 8, 9, 0, sender=LIARS[1]) > 0 for _ in range(1_000))
    assert empty <= rate.most // QUESTION_BYTES + 1
    _, ask = asking(shelf, CatchUpLimits(given=Rate(1 << 40, 1 << 40)))
    assert sum(ask(*HERE, 0, 8, 0) for _ in range(50)) > 10 * rate.most, "without the bound"


def test_only_relays_are_answered() -> None:
    role, ask = asking(MemoryShelf(parcels={HERE: list(parcels(8))}, blobs=blobs()))
    assert ask(*HERE, 0, 8, 0) > 0
    assert ask(*HERE, 0, 8, 0, sender=STRANGER) == 0
    assert role.dropped == {"no-right": 1}


@pytest.mark.parametrize(
    "content",
    [(), (1,), (b"x",), ([],), ([bytes(31)],), ([bytes(32)] * 65,), (*HERE, 0, 8), (*HERE, -1, 8, 0),
     (bytes(15), 0, 0, 8, 0), (HERE.token, 1 << 16, 0, 8, 0), (*HERE, 0, 8, 0, 0)],
)  # fmt: skip
def test_questions_that_are_none(content: Any) -> None:
    role, ask = asking(MemoryShelf())
    assert ask(*content) == 0
    assert role.dropped == {"malformed": 1}


@pytest.mark.parametrize("numbers", [(0, 9, 0), (8, 8, 0), (9, 8, 0), (1 << 62, (1 << 63) - 1, 0), (0, 8, 1 << 62)])
def test_what_is_not_there_is_answered_with_nothing(numbers: tuple[int, int, int]) -> None:
    role, ask = asking(MemoryShelf(parcels={HERE: list(parcels(8))}))
    assert 0 < ask(*HERE, *numbers) < 1_000
    assert not role.dropped


def test_what_was_not_asked_for_is_dropped() -> None:
    library = Library(parcels(8), silence)
    library.want()
    full = library.full()
    question = wire.encode([1, *HERE, 0, 8, 0])
    good = [full.read(HERE, 0, 8, 1 << 20), full.range_proof(HERE, 0, 8, 8), []]
    for sender, asked in ((HONEST, question), (LIARS[0], wire.encode([1, *HERE, 0, 7, 0])), (STRANGER, question)):
        frame = OverlayFrame.decode(answered(asked, good))
        assert not [one for one in library.me.role.take(frame, sender, NOW) if isinstance(one, Deliver)]
    assert library.me.role.dropped == {"unasked": 2, "no-right": 1}


# --- whole relays ---


@pytest.mark.parametrize("seed", range(6))
def test_whole_relays_of_which_as_many_lie_as_may(seed: int) -> None:
    """One relay of each virtual node spoils, repeats and drops what it sends; another one comes back with nothing."""
    world = RelayWorld((3, 3), seed, frozenset({(1, 2), (2, 1)}))
    stored = list(parcels(8))
    everybody = [relay.identifier for node in world.plans[1].nodes for relay in node.relays]
    for name in everybody:
        shelf = world.role(name).shelf
        shelf.parcels, shelf.blobs, shelf.others = (
            {HERE: list(stored)},
            dict(blobs()),
            Random(seed).sample(everybody, 6),
        )
    away = world.role(relay_name(2, 2))
    root = away.shelf.tree(HERE).root()
    away.shelf.parcels, away.shelf.blobs = {}, {}
    world._carry(away.name, away.relay.catching_up.want(HERE, 0, 8, root, world.now))
    world.run(60)
    proved = [one for _, who, one in world.network.delivered if who == away.name.hex() and isinstance(one, Proved)]
    assert [data for one in proved for data in one.parcels] == stored


def test_clients_are_not_answered() -> None:
    world = RelayWorld((3,))
    role = world.role(relay_name(1, 1))
    client = world.publisher.permit.principal.hex()
    question = OverlayFrame(FrameKind.CATCH_UP, 1, wire.encode([1, wire.encode([1, [bytes(32)]]), None])).encode()
    assert not role.receive(Arrived(client, question), world.now)
    assert role.receive(Arrived(relay_name(1, 2).hex(), question), world.now)
    assert role.relay.catching_up.dropped == {"no-right": 1}
