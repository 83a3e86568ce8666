"""What a driver lends its tasks, so that the identity's folder is on the driver's machine and nowhere else.

Threat: an identity that lies on every machine of a cluster, for whoever comes by. A loan holds what the tasks of one
query need and is in memory only: the keys of the query's permit, less those destroyed by now; the attribute key, where
the authority has attributes; the seed that signs requests, without which a node answers nobody; the way to Kafka, if
the identity has one. It does not hold the sealing key, so its holder gets nothing from the authority: no key of another
topic or of a later epoch, no new keys for the identity.

It travels with each task, over the channel that `channel` has checked. Spark neither logs nor shows what a partition
holds; the loan has no text form that could slip into an error.

Left out: whoever runs code in an executor holds the seed and may act in the identity's name where the node alone
decides, until the identity is given new keys (`tally principal rekey`). Give a pipeline an identity of its own that may
read, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tallystick.authority.grant import Grant
from tallystick.carriers.carrier import Carrier
from tallystick.carriers.registry import Way, own_way
from tallystick.carriers.remote import RemoteNode
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.identity.folder import Identity
from tallystick.identity.nodes import addresses
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.sources import SystemClock, SystemEntropy


@dataclass(frozen=True, repr=False)
class Loan:
    """Plain values, as slices are."""

    instance: bytes
    permit: bytes  # its identifier
    grant: bytes
    attributes: bytes  # the attribute key, in the epochs that have begun; empty where there is none
    principal: bytes
    signing_seed: bytes
    nodes: tuple[tuple[str, bytes, bytes], ...]  # address, identifier, key
    way: Way | None = None  # past the node, if the identity has one


def lend(identity: Identity, permit: bytes, grant: Grant, attributes: bytes) -> Loan:
    """The loan of `grant`, everything that is held under the permit, and of the attribute key."""
    nodes = tuple((one.url, one.node, b"" if one.key is None else one.key.raw) for one in addresses(identity))
    grant = replace(grant, permit=b"", undo_token=b"", epochs=(), labels=None)  # what opens, and nothing else
    opening = (identity.instance, permit, grant.encode(), attributes)
    return Loan(*opening, identity.principal, identity.signing_seed, nodes, own_way(identity.home))


class Borrowed:
    """The way to node and brokers of whoever got a loan."""

    def __init__(self, loan: Loan) -> None:
        signer = RequestSigner(loan.principal, SigningKey.from_seed(loan.signing_seed))
        nodes = [Address(url, node, VerifyKey(key) if key else None) for url, node, key in loan.nodes]
        self._http = HttpClient(nodes, signer, SystemClock(), SystemEntropy())
        self.node = RemoteNode(self._http)
        self._direct = None if loan.way is None else loan.way.open(self.node, loan.principal)
        self.carrier: Carrier = self._direct or self.node

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()
        self._http.close()
