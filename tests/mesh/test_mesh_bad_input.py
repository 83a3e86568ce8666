"""What a neighbour may send that it should not: forged, repeated, old, early, oversized, from outside, too much. It is
dropped and counted at the first honest hop, and nobody behind that hears of it. Without the check, everybody does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256

import pytest
from makers import seed as secret
from mesh_world import AUTHORITY, NOW_MS, advertised, enveloped, mesh_key, publisher
from node_world import STILL, NodeWorld, drawn
from without import without

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.advertisement import ChainSecret
from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.distribution import DistributionLimits
from tallystick.carriers.mesh.frames import MeshKind, framed
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.localisation import LocalisationLimits
from tallystick.carriers.mesh.mesh_node import Publication
from tallystick.crypto.signatures import SigningKey
from tallystick.runtime.sources import SeededEntropy

SETTINGS = replace(
    STILL,
    mesh=MeshLimits(envelope_bytes_max=4_000),
    community=CommunityLimits(pulse_s=1000.0, silent_s=3000.0),
    distribution=DistributionLimits(keep_s=0.5),
    frames_max=50,
)
FIRST = replace(SETTINGS, localisation=LocalisationLimits(brought_max=2))
FALSE_AUTHORITY = SigningKey.from_seed(secret("another authority"))


def behind(world: NodeWorld) -> int:
    """Parcels that came to the subscriber behind the first honest hop."""
    return sum(world.delivered().get("s", {}).values())


def heard_of(world: NodeWorld) -> int:
    """Publishers that the node behind the first honest hop knows of."""
    return len(world.node("f2").localisation.known)


def sealed(parcel: bytes, who: str = "p", authority: SigningKey = AUTHORITY, at_ms: int = NOW_MS) -> bytes:
    by = publisher(who, authority=authority)
    return mesh_key().seal(Pushed(parcel), at_ms, by, SeededEntropy(parcel.hex())).encode()


def notify(*envelopes: bytes) -> list[bytes]:
    return [framed(MeshKind.NOTIFY, one) for one in envelopes]


def advertise(*names: str, authority: SigningKey = AUTHORITY, h: bytes = b"") -> list[bytes]:
    frames = []
    for name in names:
        by = publisher(name, authority=authority)
        chain = ChainSecret.of(by)
        made = chain.advertise(by, NOW_MS + 600_000)
        frames.append(framed(MeshKind.ADVERTISE, made.encode(), h or chain.first))
    return frames


def undo() -> list[bytes]:
    advertisement, _ = advertised("p")
    return [framed(MeshKind.UNADVERTISE, advertisement.identifier, sha256(b"a guess").digest())]


@dataclass(frozen=True)
class Case:
    frames: Callable[[], list[bytes]]
    reason: str
    defences: tuple[str, ...]
    harm: Callable[[NodeWorld], int] = behind
    sender: str = "p"  # who is on the topic; the liar is a neighbour in the graph alone
    repeats: bool = False  # once the first has been passed on


CASES = {
    "forged": Case(
        lambda: notify(sealed(b"spam", authority=FALSE_AUTHORITY)), "forged", ("the signature on the mesh's envelopes",)
    ),
    "repeated": Case(
        lambda: notify(sealed(b"news")),
        "duplicate",
        ("the mesh guard's memory", "the window of envelopes"),
        repeats=True,
    ),
    "old": Case(lambda: notify(enveloped(created_ms=NOW_MS - 200_000)), "stale", ("the age of the mesh's envelopes",)),
    "early": Case(lambda: notify(sealed(b"x", at_ms=NOW_MS + 90_000)), "future", ("the age of the mesh's envelopes",)),
    "oversized": Case(lambda: notify(sealed(bytes(9_000))), "malformed", ("the size of what passes on the mesh",)),
    "from outside": Case(
        lambda: notify(sealed(b"heard elsewhere")), "not-in-mesh", ("the neighbours on a topic",), sender="liar"
    ),
    "a publisher of nobody's": Case(
        lambda: advertise("false", authority=FALSE_AUTHORITY),
        "forged",
        ("the certificates of the mesh's publishers",),
        heard_of,
        "liar",
    ),
    "a value of the liar's own": Case(
        lambda: advertise("other", h=secret("own")),
        "wrong-chain",
        ("the anchor of an advertisement's chain",),
        heard_of,
    ),
    "too many publishers": Case(
        lambda: advertise("one", "two", "three", "four"),
        "tables-full",
        ("the room for advertisements",),
        heard_of,
        "liar",
    ),
    "taken back by a guess": Case(
        undo, "wrong-undo", ("the value that takes an advertisement back",), lambda world: -heard_of(world), "liar"
    ),
    "a flood": Case(
        lambda: [framed(MeshKind.HAVE, mesh_key().pseudonym, [], 0)] * 200,
        "too-many-requests",
        ("the patience with a neighbour on the mesh",),
        lambda world: -world.node("f1").statistics().refused.get("too-many-requests", 0),
    ),
}


def harm_of(case: Case, number: int, is_guarded: bool) -> tuple[int, dict[str, int], int]:
    """What reached those behind f1 by it, what f1 counted, and what those behind counted."""
    world = drawn(number, "p-f1 f1-f2 f2-s f1-liar", SETTINGS, f1=FIRST)
    world.node("p").advertise(Publication(publisher("p"), mesh_key()))
    world.subscribe("s")
    world.run(1)
    sender, to = (world.identities[name].hex() for name in (case.sender, "f1"))
    with nullcontext() if is_guarded else without(*case.defences):
        if case.repeats:
            world.network.send(sender, to, case.frames()[0])
            world.run(3)
        before = case.harm(world)
        for frame in case.frames():
            world.network.send(sender, to, frame)
        world.run(0.2)
        harm = case.harm(world) - before
    counts = [dict(world.node(name).statistics().refused) for name in ("f1", "f2", "s")]
    return harm, counts[0], sum(sum(one.values()) for one in counts[1:])


@pytest.mark.parametrize("name", CASES)
def test_it_is_dropped_counted_and_contained_to_one_hop(name: str, seed: int) -> None:
    case = CASES[name]
    harm, refused, beyond = harm_of(case, seed, is_guarded=True)
    assert harm <= (2 if name == "too many publishers" else 0)
    assert refused[case.reason] > 0
    assert beyond == 0


@pytest.mark.parametrize("name", CASES)
def test_without_the_check_it_goes_on(name: str, seed: int) -> None:
    case = CASES[name]
    assert harm_of(case, seed, is_guarded=False)[0] > harm_of(case, seed, is_guarded=True)[0]
