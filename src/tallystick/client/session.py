"""A session: everything an identity needs to speak to its node and its authority.

with Session.open("~/fleet/car-17") as session:
    with session.publisher("brakes") as publisher:
        publisher.produce({"vin": "WVW…", "speed": 12.5})
    for received in session.subscriber("brakes"):
        print(received.batch.data.num_rows)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.authority.client import AuthorityClient, Holder, OverHttp
from tallystick.carriers.carrier import Carrier
from tallystick.carriers.registry import own_way
from tallystick.carriers.remote import RemoteNode
from tallystick.client.grants import Grants
from tallystick.client.reader import Finding
from tallystick.client.ties import Author, ReaderTies, View
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Misuse
from tallystick.identity.folder import Identity
from tallystick.identity.nodes import addresses
from tallystick.ledger.block import Head
from tallystick.ledger.contracts.operations import HISTORIES
from tallystick.ledger.proofs import CheckpointMemory, verify_history
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import Clock, Entropy, SystemClock, SystemEntropy
from tallystick.trust.receipt import Receipt

if TYPE_CHECKING:  # imported where they are used: most commands ask one question, and neither seal nor open
    from tallystick.client.publish import OnDelivery, Publisher
    from tallystick.client.reader import Finding
    from tallystick.client.subscribe import Subscriber
    from tallystick.parcel.prove import Proof

HEAD_AGE_MAX_S = 60.0
_ITEMS_AT_ONCE = 1000


class Session(ReaderTies):
    grants: Grants
    author: Author

    def __init__(
        self,
        identity: Identity,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        head_age_max_s: float = HEAD_AGE_MAX_S,
        insecure: bool = False,
    ) -> None:
        self.identity = identity
        self.clock, self.entropy = clock or SystemClock(), entropy or SystemEntropy()
        signer = RequestSigner(identity.principal, identity.signing_key)
        if not identity.nodes or not identity.node_urls:
            raise Misuse(f"{identity.home}: no node is known", hint="name one: tally principal address --node-url")
        self._node_http = HttpClient(addresses(identity), signer, self.clock, self.entropy, insecure=insecure)
        authority = Address(identity.authority_url, identity.authority.subject, identity.authority.verify_key)
        self._authority_http = HttpClient([authority], signer, self.clock, self.entropy, insecure=insecure)
        self.node = RemoteNode(self._node_http)
        way = own_way(identity.home)
        self._direct = None if way is None else way.open(self.node, identity.principal)
        self.carrier: Carrier = self._direct or self.node  # for parcels; permits, locks and the ledger are the node's
        self.holder = Holder(identity.instance, identity.principal, identity.signing_key, identity.sealing_key)
        self.authority = AuthorityClient(OverHttp(self._authority_http), identity.authority, self.holder, self.entropy)
        self.memory = CheckpointMemory(identity.trust, RealDisk(identity.home / "ledger"))
        self.view = View(self.node, self.memory, self.clock, head_age_max_s)
        self.author = Author(identity, self.node, self.clock)
        kept = RealDisk(identity.home / "grants")
        self.grants = Grants(identity, self.authority, kept, self.clock, self.entropy)

    @classmethod
    def open(cls, home: str | Path | None = None, **options: Any) -> Session:
        """The session of the identity in `home`, or in the folder that `TALLY_HOME` names."""
        return cls(Identity.load(home), **options)

    def publisher(
        self,
        topics: str | Sequence[str],
        *,
        on_delivery: OnDelivery | None = None,
        background: bool = True,
        **settings: Any,
    ) -> Publisher:
        """A publisher to one topic or several; `settings` are those of `PublisherSettings`."""
        from tallystick.client.publish import Publisher, PublisherSettings

        names = [topics] if isinstance(topics, str) else sorted(topics)
        folder = named_hash("tallystick spool folder 1", "\x00".join(names).encode()).hex()[:16]
        disk = RealDisk(self.identity.home / "spool" / folder)
        return Publisher(
            self, topics, disk, PublisherSettings(**settings), on_delivery=on_delivery, background=background
        )

    def subscriber(
        self,
        topic: str,
        *,
        group: str | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        **settings: Any,
    ) -> Subscriber:
        """A subscriber to a topic, as a member of `group` if one is named; `settings` as in `SubscriberSettings`."""
        from tallystick.client.subscribe import Subscriber, SubscriberSettings

        return Subscriber(self, topic, SubscriberSettings(**settings), group=group, on_finding=on_finding)

    def prove(self, topic: str, partition: int, offset: int, row: int, group: int = 0) -> Proof:
        """The proof of one row of the parcel at `offset`, for anybody to check offline (`verify_proof`)."""
        from tallystick.parcel.prove import prove

        with self.subscriber(topic) as subscriber:
            verified, schema = subscriber.find(partition, offset)
            permit = self.node.permit(verified.header.topic(subscriber.token).permit)
            receipt = Receipt.decode(self.node.receipt(subscriber.token, partition, offset))
            authority = self.identity.authority.encode()
            return prove(verified, subscriber.ring, schema, row, group, permit, authority, receipt)

    def history(self, token: bytes) -> tuple[list[tuple[int, int, bytes]], Head]:
        """Every operation on a topic as (height, index, entry), newest first, and the checkpoint under which none is
        missing. Raises `Withheld` if the node leaves one out."""
        proved = self.node.state(HISTORIES(token))
        self.memory.accept(proved.note, self.node.consistency)
        head = proved.verify(self.identity.trust)
        found: list[tuple[int, int, bytes]] = []
        while True:
            before = found[-1][:2] if found else None
            page = self.node.history(token, _ITEMS_AT_ONCE, before)
            found += [(height, index, entry) for height, index, entry in page]
            if len(page) < _ITEMS_AT_ONCE:
                break
        found = [item for item in found if item[0] <= head.height]  # without what came after the proof
        verify_history(token, found[::-1], proved)
        return found, head

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()
        self._node_http.close()
        self._authority_http.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
