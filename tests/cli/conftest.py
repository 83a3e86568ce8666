"""One instance for all tests of commands: node and authority in threads, its people enrolled by the commands; and the
README's quickstart, which runs beside them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from commands import Fleet, done
from stack import PASSPHRASE, Stack
from walks import PLAIN, begin_walk

from tallystick.node.instance import write_address


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch, Stack(folder) as stack:
        patch.setenv("TALLY_PASSPHRASE", PASSPHRASE.decode())
        stack.authority.service._tick_s = 0.02  # commands wait for it again and again
        write_address(stack.folders.node, stack.node.url, stack.node.keys.certificate)
        write_address(stack.folders.authority, stack.authority.url, stack.authority.authority.certificate)
        fleet = Fleet(stack, folder)
        invitation = done("tenant", "create", "acme", folder).out
        done("principal", "enrol", "-", "--home", fleet.owner, stdin=invitation.encode())
        for home in (fleet.car, fleet.reader):
            invitation = done("principal", "invite", "--home", fleet.owner).out.strip()
            done("principal", "enrol", invitation, "--home", home)
        fleet.topic("brakes")
        yield fleet


@pytest.fixture(autouse=True)
def _begin_quickstart(request: pytest.FixtureRequest) -> None:
    """Before the first test of a command; not where those that need a chain run, apart from the others."""
    if "chain" not in request.node.nodeid:
        request.getfixturevalue("quickstart")


@pytest.fixture(scope="session")
def quickstart(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str] | None]:
    """The quickstart and the guides that need no engine, begun early and looked at by their own test: a hundred
    processes, one after the other, take the second core while the tests take the first. None if nobody will look."""
    if not any("quickstart" in item.name for item in request.session.items):
        yield None
        return
    with begin_walk(PLAIN) as process:
        yield process
        if process.poll() is None:
            process.terminate()
