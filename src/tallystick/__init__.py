"""Zero-trust event streaming: records are sealed where they are made and opened only by those entitled.

The names below are the front door; everything else is reached by its folder, each of which opens with a
paragraph on what lives in it. Names resolve on first use, so that `import tallystick` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` does, said to type checkers and editors
    from tallystick.client.session import Session as Session
    from tallystick.errors import Misuse as Misuse
    from tallystick.errors import Refused as Refused
    from tallystick.errors import TallystickError as TallystickError
    from tallystick.errors import Unavailable as Unavailable
    from tallystick.parcel.parcel import Parcel as Parcel
    from tallystick.parcel.parcel import VerifiedParcel as VerifiedParcel
    from tallystick.record.batch import Batch as Batch
    from tallystick.record.schema import Schema as Schema
    from tallystick.trust.trustfile import TrustFile as TrustFile

_HOMES = {
    "Batch": "record.batch",
    "Identity": "identity.folder",
    "Misuse": "errors",
    "Parcel": "parcel.parcel",
    "Proof": "parcel.prove",
    "Publisher": "client.publish",
    "Refused": "errors",
    "Schema": "record.schema",
    "Session": "client.session",
    "Subscriber": "client.subscribe",
    "TallystickError": "errors",
    "TrustFile": "trust.trustfile",
    "Unavailable": "errors",
    "VerifiedParcel": "parcel.parcel",
    "verify_proof": "parcel.prove",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tallystick")
    if name not in _HOMES:
        raise AttributeError(f"module 'tallystick' has no attribute {name!r}")
    value = getattr(import_module(f"tallystick.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
