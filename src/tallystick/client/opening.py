"""A subscriber's keys and schemas, and what it opens with them; what it lacks it asks the authority for, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tallystick.authority.client import AuthorityClient
from tallystick.client.keeper import Held
from tallystick.client.settings import SubscriberSettings
from tallystick.client.view import View
from tallystick.crypto import hpke
from tallystick.errors import CannotOpen
from tallystick.parcel.keyring import KeyRing
from tallystick.parcel.locks import MissingKey
from tallystick.parcel.open import open_batch, open_content
from tallystick.parcel.parcel import VerifiedParcel
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema

T = TypeVar("T")


class Opener:
    """Opens the parcels of one topic. `held` is the grant with what came since, `ring` has its keys."""

    def __init__(
        self,
        held: Held,
        fetch_lock: Callable[[bytes], bytes],
        authority: AuthorityClient,
        view: View,
        settings: SubscriberSettings,
    ) -> None:
        self.held, self.ring = held, KeyRing(fetch_lock)
        self._authority, self._view, self._settings = authority, view, settings
        self._add_keys()

    def rows(self, verified: VerifiedParcel) -> Batch:
        """The records of a data parcel, in the schema that the subscriber wants; `MissingKey` or `CannotOpen`."""
        header, fast = verified.header, self._settings.verify == "fast"
        schema = self.schema(header.schema_version, header.schema_hash)
        batch = self._opened(lambda: open_batch(verified, self.ring, schema, fast=fast))
        return batch.upgraded(self._target_schema(schema))

    def content(self, verified: VerifiedParcel) -> bytes:
        """What a gap or a commit parcel says; `MissingKey` or `CannotOpen`."""
        return self._opened(lambda: open_content(verified, self.ring))

    def _opened(self, opening: Callable[[], T]) -> T:
        """Open a parcel; a key that we lack may have been issued since: ask once."""
        try:
            return opening()
        except MissingKey:
            self.update_keys()
            return opening()

    def schema(self, version: int, schema_hash: bytes) -> Schema:
        """The topic's schema of this version, from the authority; the hash is the header's."""
        for attempt in (1, 2):
            for schema in self.held.schemas:
                if (schema.version, schema.hash) == (version, schema_hash):
                    return schema
            if attempt == 1:
                self.update_keys()
        raise CannotOpen(hint="the topic has no such schema version")

    def _target_schema(self, schema: Schema) -> Schema:
        pinned = self._settings.schema_version
        if pinned is None:
            return self.held.schemas[-1]
        for one in self.held.schemas:
            if one.version == pinned and pinned >= schema.version:
                return one
        return schema

    def update_keys(self, wait_ms: int = 0) -> bool:
        """Ask the authority for keys of new epochs, new schemas and erasures; whether there was news."""
        update = self._authority.keys(self.held.permit.identifier, self.held.grant.version, wait_ms)
        if update is None:
            return False
        self.held = self.held.updated(update)
        self._add_keys()
        return True

    def _add_keys(self) -> None:
        grant = self.held.grant
        for epoch, seed in grant.private_keys:
            self.ring.add_topic_key(grant.token, epoch, hpke.PrivateKey.decode(seed))
        for one in grant.erasure_keys:
            self.ring.add_erasure_key(grant.token, one.publisher, one.period, hpke.PrivateKey.decode(one.key))
        for publisher, period in grant.erased:
            self.ring.forget_erasure_key(grant.token, publisher, period)

    def was_erased(self, error: MissingKey) -> bool:
        """Whether the ledger says that this key was destroyed on purpose."""
        if error.epoch is not None:
            return False
        key = b"erasure/" + error.token + error.publisher + error.period.to_bytes(4, "big")
        return self._view.value(key) is not None
