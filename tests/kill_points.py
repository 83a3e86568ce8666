"""Where a write can be killed: between any two steps of client/writes.py, in whichever process takes them.

`install(point, kill)` wraps the step so that `kill` is called right before or right after it; whoever tests decides
what dies. The code under test knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tallystick.carriers.remote import RemoteNode
from tallystick.client.ties import Author
from tallystick.client.writes import Committer
from tallystick.parcel.header import ParcelKind
from tallystick.parcel.parcel import Parcel

Kill = Callable[[], None]


def _is_pending(node: RemoteNode, token: bytes, parcels: list[bytes]) -> bool:
    return Parcel.decode(parcels[-1]).header.pending


def _is_commit(node: RemoteNode, token: bytes, parcels: list[bytes]) -> bool:
    return Parcel.decode(parcels[-1]).header.kind is ParcelKind.COMMIT


def _always(*args: Any) -> bool:
    return True


# point: (owner, step, before or after it, when)
_POINTS: dict[str, tuple[Any, str, str, Callable[..., bool]]] = {
    "part sealed": (RemoteNode, "publish", "before", _is_pending),
    "part stored": (RemoteNode, "publish", "after", _is_pending),
    "part anchored": (Committer, "commit", "before", _always),
    "list kept": (Committer, "_keep", "after", _always),
    "set won, unheard": (Author, "write", "after", _always),
    "set won": (Committer, "_win", "after", _always),
    "commit parcel sealed": (RemoteNode, "publish", "before", _is_commit),
    "commit parcel stored": (RemoteNode, "publish", "after", _is_commit),
    "commit parcel anchored": (Committer, "_finish", "before", _always),
    "committed": (Committer, "commit", "after", _always),
}
POINTS = tuple(_POINTS)


def install(point: str, kill: Kill) -> None:
    owner, name, when, applies = _POINTS[point]
    step = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        if when == "before" and applies(*args):
            kill()
        result = step(*args, **options)
        if when == "after" and applies(*args):
            kill()
        return result

    setattr(owner, name, wrapped)
