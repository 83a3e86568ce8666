"""Mirrors on a real instance: one of them seeds, the next one when it goes, and who joins fetches what there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import await_topic
from object_world import noise, put
from stack import READ, Stack, wait_until
from without import without

from tallystick.client.group import LEASE_MS, Member
from tallystick.client.session import Session
from tallystick.errors import Unavailable
from tallystick.fleet.ota.mirrors import MIRRORS, SCHEMA, ImageMirror, docket_row, read_dockets
from tallystick.objects.fetching import Fetching, FolderKeeper
from tallystick.objects.layout import Docket, slips_file
from tallystick.objects.ranges import Seed, seed_file
from tallystick.objects.sources import FolderSource, Source
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import ManualClock, SystemClock

DATA = noise(4, 300_000)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("mirrors")) as stack:
        yield stack


class Town:
    """A tenant with a topic of dockets, and three mirrors with a folder each."""

    def __init__(self, stack: Stack, folder: Path, tenant: str) -> None:
        self.folder = folder
        self.owner = stack.tenant(tenant)
        self.token = stack.topic(self.owner, MIRRORS, SCHEMA)
        await_topic(stack, self.token)
        self.sessions = [stack.principal(tenant, f"{tenant}-mirror{number}") for number in range(3)]
        self.sessions.sort(key=lambda session: session.identity.principal)  # the ledger deals in this order
        for session in self.sessions:
            stack.grant(self.owner, self.token, session, READ)
        self.names = [session.identity.principal.hex() for session in self.sessions]

    def disk(self, place: int) -> RealDisk:
        return RealDisk(self.folder / str(place))

    def sources(self, *places: int) -> dict[str, Source]:
        return {self.names[place]: FolderSource(self.disk(place), self.names[place]) for place in places}

    def mirror(self, place: int, clock: ManualClock | SystemClock = SystemClock()) -> ImageMirror:
        session: Session = self.sessions[place]
        member = Member(session, MIRRORS, self.token, 1, 5.0)
        others = self.sources(*(other for other in range(3) if other != place))
        return ImageMirror(member, self.disk(place), session.identity.tenant, others, clock)

    def seed(self, place: int, docket: Docket) -> Seed | None:
        path = self.folder / str(place) / seed_file(docket.root)
        return Seed.decode(path.read_bytes()) if path.exists() else None


def test_one_mirror_seeds_and_the_next_one_when_it_goes(stack: Stack, tmp_path: Path) -> None:
    town = Town(stack, tmp_path, "harbour")
    docket, _ = put(tmp_path / "0", DATA)
    first, second = town.mirror(0), town.mirror(1)
    first.take(docket)
    second.take(docket)  # joins by fetching, before there is any seeder
    assert first.renew()
    alone = town.seed(0, docket)
    assert alone is not None
    assert alone.servers == (town.names[0],)
    assert not second.renew()
    assert first.renew()
    both = town.seed(0, docket)
    assert both is not None
    assert both.servers == tuple(town.names[:2])
    assert both.fence > alone.fence
    assert town.seed(1, docket) is None
    # A vehicle follows it.
    keeper = FolderKeeper(RealDisk(tmp_path / "car"), docket)
    statistics = Fetching(docket, town.sources(0, 1), keeper, SystemClock()).run()
    keeper.close()
    assert statistics.chunks == docket.count
    # The seeder goes, and its seeds with it.
    first.leave()
    assert town.seed(0, docket) is None
    wait_until(second.renew)
    after = town.seed(1, docket)
    assert after is not None
    assert after.fence > both.fence
    second.leave()


def test_a_mirror_that_is_cut_off_seeds_no_longer_than_its_lease(stack: Stack, tmp_path: Path) -> None:
    def cut_off(folder: Path, tenant: str) -> bool:
        """Whether its seed still lies there when its lease has run out."""
        town, clock = Town(stack, folder, tenant), ManualClock()
        docket, _ = put(folder / "0", DATA)
        mirror = town.mirror(0, clock)
        mirror.take(docket)
        assert mirror.renew()
        with town.sessions[0].within(0.0):
            with pytest.raises(Unavailable):
                mirror.renew()
            assert mirror.is_seeder
            assert town.seed(0, docket) is not None
            clock.advance(LEASE_MS / 1000)
            with pytest.raises(Unavailable):
                mirror.renew()
        return town.seed(0, docket) is not None

    assert not cut_off(tmp_path / "with", "quay")
    with without("the end of a mirror's lease"):
        assert cut_off(tmp_path / "without", "pier")


def test_seeds_of_an_earlier_life_are_taken_away(stack: Stack, tmp_path: Path) -> None:
    town = Town(stack, tmp_path, "dock")
    docket, _ = put(tmp_path / "0", DATA)
    mirror = town.mirror(0)
    mirror.take(docket)
    mirror.renew()
    assert town.seed(0, docket) is not None
    town.mirror(0)  # after a crash: whether the lease is still ours, the ledger says
    assert town.seed(0, docket) is None
    assert town.disk(0).exists(slips_file(docket.root))


def test_dockets_travel_as_rows_and_a_malformed_one_stops_nothing(tmp_path: Path) -> None:
    docket, _ = put(tmp_path, DATA)
    assert list(read_dockets([docket_row(docket), {"docket": b"noise"}, docket_row(docket)])) == [docket, docket]
