"""What ties an identity to its instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tallystick.carriers.carrier import Carrier
from tallystick.carriers.remote import RemoteNode
from tallystick.client.view import View
from tallystick.identity.folder import Identity
from tallystick.runtime.clock import Clock
from tallystick.runtime.entropy import Entropy

if TYPE_CHECKING:
    from tallystick.authority.client import AuthorityClient
    from tallystick.client.author import Author
    from tallystick.client.grants import Grants, KeySource


class Ties(Protocol):
    """An identity and its ways to carrier, authority and ledger: a session, or what a Spark task was lent of one."""

    @property
    def identity(self) -> Identity: ...

    @property
    def node(self) -> RemoteNode:
        """Where permits, locks and the ledger are asked for."""

    @property
    def carrier(self) -> Carrier:
        """Where parcels go and come from: the node, or a way past it."""

    @property
    def authority(self) -> KeySource: ...

    @property
    def view(self) -> View: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def entropy(self) -> Entropy: ...

    @property
    def grants(self) -> Grants | None:
        """Keeps permits across starts, where there is one."""

    @property
    def author(self) -> Author | None:
        """Brings broken promises to the ledger, where there is one."""


class ReaderTies(Ties, Protocol):
    """Those of a reader, who asks the authority for more than keys."""

    @property
    def authority(self) -> AuthorityClient: ...
