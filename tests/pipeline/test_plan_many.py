"""Planning over many publishers: few requests however many there are, and nothing believed for having come in company.

No Spark: the driver's planner against a real node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from actors import Hand, Liar, Topic, give_up, row_of, settle, stored
from stack import Stack, wait_until
from without import without

from tallystick import wire
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.client.subscribe import FoundError
from tallystick.errors import Forged, Refused
from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.proofs import StateProof
from tallystick.pipeline.access import Access, admit
from tallystick.pipeline.options import Options
from tallystick.pipeline.plan import Planner, Slice

FEW, MANY = 2, 12


class Fleet(NamedTuple):
    topic: Topic
    revoked: bytes  # the last of its publishers


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Each publisher has two parcels, the second ones behind all the first, and the last a third after its end."""
    with Stack(tmp_path_factory.mktemp("many")) as stack:
        topic = Topic(stack, "acme")
        hands = [Hand(topic.publisher(f"car{number}"), "brakes") for number in range(MANY)]
        for number in range(2):
            for hand in hands:
                stored(hand.send(hand.seal(number))[0])
        settle(stack)
        wait_until(lambda: anchored(topic) == 2 * MANY)
        revoked = hands[-1].session.identity.principal
        topic.owner.authority.revoke(revoked)
        wait_until(lambda: bool(row_of(topic.reader.view, IDENTITIES(revoked)).revoked))
        with without("the guard of publishing", permit=hands[-1].permit):  # what a thief of its key has the node store
            stored(hands[0].send(hands[-1].seal(2))[0])
        wait_until(lambda: anchored(topic) > 2 * MANY)  # an anchor after the revocation
        yield Fleet(topic, revoked)


def anchored(topic: Topic) -> int:
    row = topic.reader.view.row(ANCHORS(topic.token, 0))
    return 0 if row is None else row.size


@contextmanager
def driver(topic: Topic) -> Iterator[tuple[Access, Callable[[int, int], list[Slice]], list[str]]]:
    """A driver's access, what plans a range, and the paths that it asked for."""
    access = admit(str(topic.reader.identity.home), "brakes")
    options = Options.parse({"home": str(topic.reader.identity.home), "topic": "brakes"})
    asked = count_requests(access.session)

    def plan(first: int, end: int) -> list[Slice]:
        planner = Planner(options, access)
        anchors = planner.anchors()
        del asked[:]
        return [slice_ for share in planner.plan({0: first}, {0: end}, anchors) for slice_ in share]

    try:
        yield access, plan, asked
    finally:
        access.close()


def count_requests(session: Session) -> list[str]:
    asked: list[str] = []
    http: Any = session.node._http
    honest = http.request

    def request(method: str, path: str, *args: Any, **options: Any) -> Any:
        asked.append(path)
        return honest(method, path, *args, **options)

    http.request = request
    return asked


def test_the_number_of_requests_does_not_grow_with_the_publishers(fleet: Fleet) -> None:
    with driver(fleet.topic) as (_, plan, asked):
        few = (plan(MANY, MANY + FEW), list(asked))
        many = (plan(MANY, 2 * MANY), list(asked))
    assert [sum(len(one.names) // 32 for one in slices) for slices in (few[0], many[0])] == [FEW, MANY]
    # Headers, permits, fronts, checkpoints, states; and for one that was revoked, what was anchored before. A block
    # that comes meanwhile asks for a proof more.
    counts = [sum(not path.endswith("/consistency") for path in asked) for _, asked in (few, many)]
    assert max(counts) <= 6


def test_a_revoked_publisher_is_found_among_many(fleet: Fleet) -> None:
    with driver(fleet.topic) as (_, plan, _asked):
        assert {one.suspects for one in plan(MANY, 2 * MANY)} == {()}, "it was anchored before"
        assert {one.suspects for one in plan(MANY, 2 * MANY + 1)} == {((fleet.revoked, 2 * MANY),)}


def lying(access: Access) -> Any:
    """A node between this driver and the honest one: assign a method to lie in it."""
    session: Any = access.session
    session.node = Liar(session.node)
    return session.node


def hide_revocation(fleet: Fleet, access: Access) -> None:
    """The node shows the state of one publisher as it was."""
    liar, hidden = lying(access), IDENTITIES(fleet.revoked)

    def states(keys: Sequence[bytes]) -> list[StateProof]:
        proofs = dict(zip(keys, liar.honest.states(keys), strict=True))
        if hidden in proofs:
            value = wire.decode(proofs[hidden].value, "identity")
            proofs[hidden] = replace(proofs[hidden], value=wire.encode([*value[:7], 0, *value[8:]]))
        return list(proofs.values())

    liar.states = states


def test_one_false_proof_among_many_is_refused(fleet: Fleet) -> None:
    with driver(fleet.topic) as (access, plan, _asked):
        hide_revocation(fleet, access)
        with pytest.raises(Forged):
            plan(MANY, 2 * MANY + 1)


def test_without_the_check_a_false_proof_hides_a_revocation(fleet: Fleet) -> None:
    with without("the proof of a ledger's value"), driver(fleet.topic) as (access, plan, _asked):
        hide_revocation(fleet, access)
        assert {one.suspects for one in plan(MANY, 2 * MANY + 1)} == {()}


def test_one_false_front_among_many_is_found(fleet: Fleet) -> None:
    with driver(fleet.topic) as (access, plan, _asked):
        liar = lying(access)

        def lane_fronts(*args: Any) -> Any:
            fronts = liar.honest.lane_fronts(*args)
            fronts[2] = replace(fronts[2], offset=fronts[2].offset ^ 1)
            return fronts

        liar.lane_fronts = lane_fronts
        with pytest.raises((FoundError, Refused)):
            plan(MANY, 2 * MANY)


def test_a_permit_of_another_is_not_taken_for_the_one_asked_for(fleet: Fleet) -> None:
    with driver(fleet.topic) as (access, plan, _asked):
        liar = lying(access)
        shown: list[bytes] = []

        def permit(identifier: bytes) -> bytes:
            shown.append(liar.honest.permit(identifier))
            return shown[0]

        liar.permit = permit
        liar.permits = lambda identifiers: [permit(one) for one in identifiers]
        with pytest.raises((FoundError, Refused)):
            plan(MANY, 2 * MANY)


def test_a_bundle_is_bounded_and_holds_questions_only(fleet: Fleet) -> None:
    node = fleet.topic.reader.node
    with pytest.raises(Refused) as refused:
        node._http.request("POST", "/v1/bundle", "", wire.encode([["/v1/ledger/state", "key=00"]] * 257))
    assert refused.value.reason == "malformed"
    undo = wire.decode(node._http.request("POST", "/v1/bundle", "", wire.encode([["/v1/undo", ""], 7])).body, "answer")
    assert [status for status, _ in undo] == [404, 400]


def test_a_stream_that_stands_below_retention_is_told(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """The last here: it takes bodies away."""
    topic = fleet.topic
    given = {"home": str(topic.reader.identity.home), "topic": "brakes"}
    with driver(topic) as (access, _plan, _asked):
        planner, strict = (Planner(Options.parse({**given, "onBad": how}), access) for how in ("fail", "strict"))
        assert planner.left({0: 0}, {0: 4}) == {0: 0}
        give_up(topic.owner, topic.stack.node, Place(topic.token, 0), 2)
        wait_until(lambda: topic.reader.view.row(RETIRED(topic.token, 0)) is not None)
        assert strict.left({0: 2}, {0: 4}) == {0: 2}
        assert "retired" not in caplog.text
        assert planner.left({0: 1}, {0: 4}) == {0: 2}
        assert "parcels from offset 1 to 2 were retired before they were read" in caplog.text
        assert planner.left({0: 0}, {0: 1}) == {0: 1}, "of a batch that was planned before"
        with pytest.raises(FoundError, match="parcels from offset 1 to 2 were retired"):
            strict.left({0: 1}, {0: 4})
