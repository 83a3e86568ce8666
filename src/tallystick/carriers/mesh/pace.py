"""How long a node waits for its neighbours' words, by the length of link beats.

What is not an envelope waits for the next beat, so a lease, a lock or a silence is a number of beats. The limits of
the roles say it in seconds, for beats of one second. A mesh with longer beats has longer waits, or else every lease
would end before its renewal; one with shorter beats keeps them, since what crashes is not noticed by beats alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tallystick.carriers.mesh.mesh_node import MeshSettings

_WAITS = {
    "view": ("alive_s", "lost_s"),
    "matching": ("refresh_s", "lease_s", "doubt_s"),
    "game": ("decide_s", "lock_s", "pause_s"),
    "localisation": ("settle_s",),
    "distribution": ("told_s", "again_s"),
}


def paced(settings: MeshSettings) -> MeshSettings:
    """The same settings, with waits that fit their link beats."""
    by = max(settings.mesh.beat_s, 1.0)
    changed: dict[str, Any] = {}
    for role, names in _WAITS.items():
        limits = getattr(settings, role)
        changed[role] = replace(limits, **{name: getattr(limits, name) * by for name in names})
    return replace(settings, **changed)
