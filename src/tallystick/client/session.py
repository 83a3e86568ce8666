"""A session: everything an identity needs to speak to its node and its authority.

with Session.open("~/fleet/car-17") as session:
    with session.publisher("brakes") as publisher:
        publisher.produce({"vin": "WVW…", "speed": 12.5})
    for received in session.subscriber("brakes"):
        print(received.batch.data.num_rows)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick import wire
from tallystick.authority.client import AuthorityClient, Holder, OverHttp, topic_entries
from tallystick.carriers.carrier import PUSHED_PARCEL_BYTES, Carrier
from tallystick.carriers.registry import Wayfarer, own_way
from tallystick.carriers.remote import RemoteNode
from tallystick.client.grants import Grants
from tallystick.client.kept_shares import KeptShares
from tallystick.client.reader import Finding
from tallystick.client.ties import Author, ReaderTies, View
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Misuse, Refused
from tallystick.identity.choices import CarrierChoice, find_choice, read_choices
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
    from tallystick.client.objects import Objects
    from tallystick.client.publish import OnDelivery, Publisher
    from tallystick.client.reader import Finding
    from tallystick.client.subscribe import Subscriber
    from tallystick.parcel.prove import Proof

log = logging.getLogger(__name__)

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
        choice: CarrierChoice | None = None,
    ) -> None:
        """`choice` where it is for topics that go over another carrier than the identity's others."""
        self.choice, self._options = choice, {"head_age_max_s": head_age_max_s, "insecure": insecure}
        self._others: dict[tuple[str, str, bytes], Session] = {}  # by carrier and node: for topics that go elsewhere
        self.identity = identity = identity if choice is None else choice.of(identity)
        self.clock, self.entropy = clock or SystemClock(), entropy or SystemEntropy()
        signer = RequestSigner(identity.principal, identity.signing_key)
        if not identity.nodes or not identity.node_urls:
            raise Misuse(f"{identity.home}: no node is known", hint="name one: tally principal address --node-url")
        self._node_http = HttpClient(addresses(identity), signer, self.clock, self.entropy, insecure=insecure)
        authority = Address(identity.authority_url, identity.authority.subject, identity.authority.verify_key)
        self._authority_http = HttpClient([authority], signer, self.clock, self.entropy, insecure=insecure)
        self.node = RemoteNode(self._node_http)
        keys = (identity.signing_key, identity.sealing_key)
        self.holder = Holder(identity.instance, identity.principal, *keys, identity.tenant)
        self.authority = AuthorityClient(OverHttp(self._authority_http), identity.authority, self.holder, self.entropy)
        self.memory = CheckpointMemory(identity.trust, RealDisk(identity.home / "ledger"), self._successors)
        # Where some topics have another node, one of them may be behind what the other showed.
        known = len({one.node for one in addresses(identity)}) + bool(choice or read_choices(identity.home))
        asking = self.node.ask_another, known
        self.view = View(self.node, self.memory, self.clock, head_age_max_s, *asking)
        self.way = own_way(identity.home) if choice is None else choice.way
        way, who = self.way, (self.node, identity.principal, identity.signing_key)
        self._direct = None if way is None else way.open(Wayfarer(*who, self.view, self.clock, self.entropy))
        self.carrier: Carrier = self._direct or self.node  # for parcels; permits, locks and the ledger are the node's
        self.anchors = self._direct is None or self._direct.anchors
        self.sharing = None if self._direct is None else self._direct.sharing
        self._kept_shares: KeptShares | None = None
        if self.sharing is not None:
            self._kept_shares = KeptShares(identity, self.clock, self.entropy)
            self.sharing.keep(self._kept_shares.load(), self._kept_shares.save)
        self.author = Author(identity, self.node, self.clock)
        kept = RealDisk(identity.home / "grants")
        self.grants = Grants(identity, self.authority, self.view, kept, self.clock, self.entropy)

    @classmethod
    def open(cls, home: str | Path | None = None, *, topic: str | None = None, **options: Any) -> Session:
        """The session of the identity in `home`, or in the folder that `TALLY_HOME` names or `tally use` chose. With a
        `topic` it is the one over which that topic goes."""
        identity = Identity.load(home)
        if topic is not None:
            options["choice"] = find_choice(identity.home, [topic])
        return cls(identity, **options)

    def over(self, topics: str | Sequence[str], carrier: str | None = None) -> Session:
        """The session over which these topics go: this one, or that of the carrier that was chosen for them. Raises
        `Misuse` where it is not the `carrier` that was asked for. It is closed with this one."""
        names = [topics] if isinstance(topics, str) else list(topics)
        if self.way is not None and carrier == self.way.url:
            return self
        if self.choice is not None:
            if carrier is not None or not all(map(self.choice.has, names)):
                raise Misuse(f"{', '.join(names)}: this session is for others, over {self.choice.carrier}")
            return self
        choice = find_choice(self.identity.home, names, carrier)
        if choice is None:
            return self
        where = choice.carrier, choice.url, choice.node.subject
        if where not in self._others:
            given: Any = self._options
            self._others[where] = Session(self.identity, clock=self.clock, entropy=self.entropy, choice=choice, **given)
        self._others[where].choice = choice  # topics may have been chosen since
        return self._others[where]

    def everywhere(self) -> list[Session]:
        """This session, and those of carriers that were chosen for some topics."""
        choices = {} if self.choice is not None else read_choices(self.identity.home)
        return [self, *(self.over(next(iter(one.topics))) for one in choices.values() if one.topics)]

    @property
    def _carrier_name(self) -> str:
        return "the carrier" if self.way is None else f"the {self.way.scheme}"

    @property
    def acks_most(self) -> str:
        """The most that a publisher can wait for here: `acks`."""
        return "anchored" if self.anchors else "stored"

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
        carrier: str | None = None,
        on_delivery: OnDelivery | None = None,
        background: bool = True,
        **settings: Any,
    ) -> Publisher:
        """A publisher to one topic or several; `settings` are those of `PublisherSettings`. A topic goes over the
        carrier that was chosen for it; `carrier="mesh://…"` is for who wants that one or none."""
        from tallystick.client.publish import Publisher, PublisherSettings

        if (other := self.over(topics, carrier)) is not self:
            return other.publisher(topics, on_delivery=on_delivery, background=background, **settings)
        if not self.anchors:
            if settings.get("acks") == "anchored":
                raise Misuse(
                    f"acks=anchored: {self._carrier_name} anchors nothing",
                    hint="acks=stored is all that it can tell: --acks stored",
                )
            settings = {"parcel_bytes_max": PUSHED_PARCEL_BYTES, **settings}
        names = [topics] if isinstance(topics, str) else sorted(topics)
        self._name_spool(_spool_folder(names), names)
        disk, chosen = self.spool_disk(names), PublisherSettings(**settings)
        publisher = Publisher(self, topics, disk, chosen, on_delivery=on_delivery, background=background)
        publisher.warnings = self._warnings(publisher.tokens)
        return publisher

    def _warnings(self, tokens: Sequence[bytes]) -> tuple[str, ...]:
        """What is to be said where topics on a mesh have fewer members than their owners want; it is logged as well."""
        if self.way is None or self.way.scheme != "mesh":
            return ()
        from tallystick.client.mesh_keyring import MeshKeyring

        keyring = MeshKeyring(self.identity, self.authority, self.clock, self.entropy)
        found = tuple(f"topic {token.hex()}: {told}" for token in tokens if (told := keyring.warning(token)))
        for one in found:
            log.warning("%s", one)
        return found

    @cached_property
    def objects(self) -> Objects:
        """Large objects: what does not fit a record goes there, and its reference into the record."""
        from tallystick.client.objects import Objects

        return Objects(self.identity, self.clock, self.entropy, insecure=bool(self._options["insecure"]))

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
        topic: str | bytes,
        *,
        carrier: str | None = None,
        group: str | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        **settings: Any,
    ) -> Subscriber:
        """A subscriber to a topic, by its name in one's own tenant or by its token, as a member of `group` if one is
        named; `settings` as in `SubscriberSettings`, and `carrier` as of a publisher."""
        from tallystick.client.group import note_name
        from tallystick.client.subscribe import Subscriber, SubscriberSettings

        if (other := self.over(_shown(topic), carrier)) is not self:
            return other.subscriber(topic, group=group, on_finding=on_finding, **settings)
        if not self.anchors:
            if settings.get("read") == "anchored":
                raise Misuse(
                    f"read=anchored: {self._carrier_name} anchors nothing",
                    hint="read=stored reads what this node keeps",
                )
            settings = {"read": "stored", **settings}
        subscriber = Subscriber(self, topic, SubscriberSettings(**settings), group=group, on_finding=on_finding)
        subscriber.warnings = self._warnings([subscriber.token])
        if group is not None:
            note_name(self.identity.home, group)
        return subscriber

    def prove(
        self,
        topic: str | bytes,
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

        if not (other := self.over(_shown(topic))).anchors:
            name = other._carrier_name
            raise Misuse(f'topic "{_shown(topic)}": {name} anchors nothing, and what is not anchored is not proved')
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
        since, proved = self.view.height, self.node.state(HISTORIES(token))
        self.view.remember(proved.note, since)
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
        for other in self._others.values():
            other.close()
        if self.memory.trust is not self.identity.trust:
            replace(self.identity, trust=self.memory.trust).write_trust()
        if self._direct is not None:
            self._direct.close()
        if self.sharing is not None and self._kept_shares is not None:
            self._kept_shares.save(self.sharing.opened, now=True)
        self._node_http.close()
        self._authority_http.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _spool_folder(names: Sequence[str]) -> str:
    return named_hash("tallystick spool folder 1", "\x00".join(names).encode()).hex()[:16]


def _shown(topic: str | bytes) -> str:
    """As choices of carriers name it."""
    return topic if isinstance(topic, str) else topic.hex()
