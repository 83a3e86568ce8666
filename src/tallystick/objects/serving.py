"""What makes a server of objects the seeder: a third file, which `make_seed` writes from the slips alone. Any web
server with byte ranges serves it beside the two others, and has no keys to lose."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.crypto.merkle import cut
from tallystick.crypto.symmetric import Buffer
from tallystick.errors import Misuse
from tallystick.objects.layout import SLIP_BYTES, Docket, slips_root
from tallystick.objects.ranges import SERVERS_MAX, Seed, depth_for


def make_seed(docket: Docket, slips: Buffer, servers: Sequence[str], fence: int) -> Seed:
    """The seed of a seeder whose lease has this fence. Subtrees are dealt to the servers in turn."""
    if not 1 <= len(servers) <= SERVERS_MAX:
        raise Misuse(f"seed: from 1 to {SERVERS_MAX} servers are expected, found {len(servers)}")
    depth, view = depth_for(docket, len(servers)), memoryview(slips).cast("B")
    subtrees = cut(docket.count, depth)
    uncles = tuple(slips_root(view[first * SLIP_BYTES : end * SLIP_BYTES]) for first, end in subtrees)
    dealt = bytes(place % len(servers) for place in range(len(subtrees)))
    docket.check_uncles(depth, uncles)  # of slips that are damaged no seed is made
    return Seed(docket.root, fence, depth, uncles, tuple(servers), dealt)
