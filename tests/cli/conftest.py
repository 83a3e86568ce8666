"""One instance for all tests of commands: node and authority in threads, its people enrolled by the commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commands import Fleet, done
from stack import PASSPHRASE, Stack

from tallystick.node.addresses import write_address


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
