"""A session: everything an identity needs to speak to its node and its authority.

with Session.open("~/fleet/car-17") as session:
    with session.publisher("brakes") as publisher:
        publisher.produce({"vin": "WVW…", "speed": 12.5})
    for received in session.subscriber("brakes"):
        print(received.batch.data.num_rows)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick import wire
from tallystick.authority.client import AuthorityClient, Holder, OverHttp, topic_entries
from tallystick.carriers.carrier import Carrier
from tallystick.carriers.registry import own_way
from tallystick.carriers.remote import RemoteNode
from tallystick.client.grants import Grants
from tallystick.client.reader import Finding
from tallystick.client.ties import Author, ReaderTies, View
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Misuse, Refused
from tallystick.identity.folder import Identity
from tallystick.identity.nodes import addresses
from tallystick.ledger.block import Head
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import HISTORIES
from tallystick.ledger.contracts.settings import VERSIONS, version_at
from tallystick.ledger.contracts.topics import BOUND_VERSION, CLEAR, TOPICS, Terms
from tallystick.ledger.proofs import CheckpointMemory, verify_history
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.disk import RealDisk, write_atomic
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
        keys = (identity.signing_key, identity.sealing_key)
        self.holder = Holder(identity.instance, identity.principal, *keys, identity.tenant)
        self.authority = AuthorityClient(OverHttp(self._authority_http), identity.authority, self.holder, self.entropy)
        self.memory = CheckpointMemory(identity.trust, RealDisk(identity.home / "ledger"), self._successors)
        self.view = View(self.node, self.memory, self.clock, head_age_max_s)
        self.author = Author(identity, self.node, self.clock)
        kept = RealDisk(identity.home / "grants")
        self.grants = Grants(identity, self.authority, self.view, kept, self.clock, self.entropy)

    @classmethod
    def open(cls, home: str | Path | None = None, **options: Any) -> Session:
        """The session of the identity in `home`, or in the folder that `TALLY_HOME` names or `tally use` chose."""
        return cls(Identity.load(home), **options)

    def create_topic(
        self,
        name: str,
        schema: bytes,
        partitions: int = 1,
        flags: int = 0,
        terms: Terms = Terms(),
        *,
        write: Callable[..., None] | None = None,
    ) -> bytes:
        """Make a topic that this identity owns. Returns its token, which is bound to the tenant wherever the ledger
        knows of that; before, a topic has no terms. `write` signs and submits the entries, if not the author does."""
        write = write or self.author.write
        versions, head = self.view.row_at(VERSIONS())
        if version_at(versions, "topics", head.height + 1) < BOUND_VERSION:
            try:
                return self._create_unbound(name, schema, partitions, flags, terms, write)
            except Refused as error:
                if error.reason != "unbound-topic":  # else the contract came into force meanwhile
                    raise
        draft = self.authority.bind_topic(name, schema, partitions, flags)
        write(*topic_entries(draft, self.holder, terms=terms))
        return draft.token

    def _create_unbound(
        self, name: str, schema: bytes, partitions: int, flags: int, terms: Terms, write: Callable[..., None]
    ) -> bytes:
        if terms != Terms() or flags & CLEAR:
            raise Misuse(
                "this instance's ledger does not keep such terms of a topic yet",
                hint="its operator activates the contracts of this release; or leave them out",
            )
        draft = self.authority.create_topic(name, schema, partitions, flags)
        write(*topic_entries(draft, self.holder))
        return draft.token

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
        self._name_spool(_spool_folder(names), names)
        disk = self.spool_disk(names)
        return Publisher(
            self, topics, disk, PublisherSettings(**settings), on_delivery=on_delivery, background=background
        )

    def spool_disk(self, names: Sequence[str]) -> RealDisk:
        """Where the spool of a publisher to these topics lies; one at a time takes it up."""
        return RealDisk(self.identity.home / "spool" / _spool_folder(sorted(names)))

    def _name_spool(self, folder: str, names: Sequence[str]) -> None:
        """Write down whose spool it is, for people: where nobody can be asked, tokens would say little."""
        kept = RealDisk(self.identity.home / "published")
        if not kept.exists(f"{folder}.topics"):
            with suppress(OSError):
                write_atomic(kept, f"{folder}.topics", "\n".join(names).encode())

    def spools(self) -> dict[str, list[str]]:
        """The folders of `spool` by name, and the topics of each, as their publisher named them; none where an older
        release did not write them down."""
        home = self.identity.home
        found = sorted(one.name for one in (home / "spool").iterdir()) if (home / "spool").is_dir() else []
        named = {name: home / "published" / f"{name}.topics" for name in found}
        return {name: file.read_text().split("\n") if file.exists() else [] for name, file in named.items()}

    def subscriber(
        self,
        topic: str,
        *,
        group: str | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        **settings: Any,
    ) -> Subscriber:
        """A subscriber to a topic, as a member of `group` if one is named; `settings` as in `SubscriberSettings`."""
        from tallystick.client.group import note_name
        from tallystick.client.subscribe import Subscriber, SubscriberSettings

        subscriber = Subscriber(self, topic, SubscriberSettings(**settings), group=group, on_finding=on_finding)
        if group is not None:
            note_name(self.identity.home, group)
        return subscriber

    def prove(
        self,
        topic: str,
        partition: int,
        offset: int,
        row: int,
        group: int = 0,
        *,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> Proof:
        """The proof of one row of the parcel at `offset`, for anybody to check offline (`verify_proof`). That the row
        is suspect is told here, since the proof does not say so."""
        from tallystick.parcel.prove import prove

        with self.subscriber(topic, on_finding=on_finding) as subscriber:
            verified, schema = subscriber.find(partition, offset)
            permit = self.node.permit(verified.header.topic(subscriber.token).permit)
            receipt = Receipt.decode(self.node.receipt(subscriber.token, partition, offset))
            authority = self.identity.authority.encode()
            topic_row = self.node.state(TOPICS(subscriber.token)).encode()
            return prove(verified, subscriber.ring, schema, row, group, permit, authority, receipt, topic_row)

    def history(self, token: bytes) -> tuple[list[tuple[int, int, bytes]], Head]:
        """Every operation on a topic as (height, index, entry), newest first, and the checkpoint under which none is
        missing. Raises `Withheld` if the node leaves one out."""
        proved = self.node.state(HISTORIES(token))
        self.memory.accept(proved.note, self.node.consistency)
        head = proved.verify(self.memory.trust)
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

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """Whatever node and authority are asked in this block takes so many seconds in all. Then it is `Unavailable`:
        they are not asked."""
        with self._node_http.within(timeout_s), self._authority_http.within(timeout_s):
            yield

    def trouble(self) -> str:
        """Return what keeps rows from being stored, anchored or opened, as node and authority say it; empty where both
        are ready."""
        return self.node.trouble() or self._authority_http.trouble("authority")

    def _successors(self) -> list[str]:
        """The trust files that the node says followed one another."""
        found = sorted((height, index, entry) for height, index, *_, entry in self.node.audit(kind=EntryKind.TRUST))
        return [wire.decode(entry, "entry")[1] for _, _, entry in found]

    def close(self) -> None:
        if self.memory.trust is not self.identity.trust:
            replace(self.identity, trust=self.memory.trust).write_trust()
        if self._direct is not None:
            self._direct.close()
        self._node_http.close()
        self._authority_http.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _spool_folder(names: Sequence[str]) -> str:
    return named_hash("tallystick spool folder 1", "\x00".join(names).encode()).hex()[:16]
