"""Who takes part in the overlay's benchmarks: the chain of virtual nodes, the keys and the routes of the tests' worlds,
and real links between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "overlay"))  # the tests' worlds

from sharing_world import PUBLISHER, SUBSCRIBER, TOKEN, chain, key_of, seeded

from tallystick.runtime.effects import Role
from tallystick.runtime.links import Links
from tallystick.runtime.peers import LinkEnd, LinkLimits, PinnedPeer
from tallystick.runtime.role_store import RoleStore

__all__ = ["PUBLISHER", "SUBSCRIBER", "TOKEN", "addresses", "chain", "key_of", "link_of"]

# A peer that is not up yet is called again soon: parties start one after the other.
LIMITS = LinkLimits(pause_min_s=0.02, pause_max_s=1.0)


def link_of(name: bytes, role: Role, deliver: Callable[[Any], None], store: RoleStore | None = None) -> Links:
    """The party's end, listening on loopback, with the link key that the plan has for it."""
    return Links(LinkEnd(name.hex(), seed=seeded("key", b"link" + name)), role, store, deliver=deliver, limits=LIMITS)


def addresses(ports: Mapping[bytes, int]) -> dict[str, PinnedPeer]:
    """The directory of all parties."""
    return {
        name.hex(): PinnedPeer(f"127.0.0.1:{port}", key_of(b"link" + name).public.raw) for name, port in ports.items()
    }
