"""Files of a mesh node beside its log, wrapped under the node's own key: the kit of its principal, and its view. A host
of the fabric keeps its kit and its labels so.

Threat: whoever gets the disk of the log, or a backup of it, and not the node's key, which lies in another folder, reads
there which topics the principal is about and who its neighbours are, or takes its node's place. Whoever has both can.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tallystick.carriers.mesh.kept_view import KeptView
from tallystick.carriers.mesh.mesh_node import VIEW
from tallystick.crypto.signatures import SigningKey
from tallystick.crypto.symmetric import SALT_BYTES, unwrap, wrap
from tallystick.errors import CannotOpen, Malformed, Unavailable
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.runtime.sources import Entropy

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 8 << 20
KIT = "kit"


class SealedFiles:
    """`mesh.kit` and `mesh.view`. For a station of the mesh it is a `RoleStore`."""

    def __init__(self, disk: Disk, key: SigningKey, entropy: Entropy, carrier: str = "mesh") -> None:
        self._disk, self._key, self._entropy = disk, key.derive("tallystick mesh files 1"), entropy
        self.carrier = carrier

    def read(self, name: str) -> bytes | None:
        """None where there is none. Raises `CannotOpen`."""
        path = f"{self.carrier}.{name}"
        if not self._disk.exists(path):
            return None
        if self._disk.size(path) > FILE_BYTES_MAX:
            raise CannotOpen
        return unwrap(self._key, read_all(self._disk, path), name.encode())

    def write(self, name: str, data: bytes) -> None:
        wrapped = wrap(self._key, data, name.encode(), self._entropy.bytes(SALT_BYTES))
        write_atomic(self._disk, f"{self.carrier}.{name}", wrapped)

    def put(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        """A disk that takes nothing now is no reason to leave the mesh."""
        try:
            for name, value in changes:
                self.write(name, value or b"")
        except (OSError, Unavailable) as error:
            log.warning("mesh: the view is not kept: %s", error)

    def items(self) -> dict[str, bytes]:
        """The view. One that cannot be read is left aside: contacts do."""
        try:
            view = self.read(VIEW) or KeptView().encode()
            KeptView.decode(view)
        except (CannotOpen, Malformed) as error:
            log.warning("mesh: the view of an earlier process cannot be read: %s", error)
            return {}
        return {VIEW: view}
