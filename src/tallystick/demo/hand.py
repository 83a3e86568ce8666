"""A publisher whose every parcel can be altered before it is sent."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tallystick.carriers.carrier import Carrier, Outcome
from tallystick.client.grants import Held
from tallystick.client.lane_keys import draw_secrets, open_lane
from tallystick.client.session import Session
from tallystick.crypto.signatures import SigningKey
from tallystick.parcel.header import SIGNATURE_CONTEXT
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.seal import Lane
from tallystick.record.batch import Batch
from tallystick.trust.permit import Operation


class Hand:
    """Seals and sends parcel by parcel."""

    def __init__(self, session: Session, *topics: str | bytes, node: Carrier | None = None) -> None:
        """A publisher to these topics at once, through `node` where another one than the session's is meant."""
        self.session, self.node = session, node or session.node
        self.grants = [Held.of(session.authority.permit(Operation.ADVERTISE, topic)) for topic in topics]
        self.held = self.grants[0]
        self.permit, self.token = self.held.permit, self.held.grant.token
        for held in self.grants:
            self.node.advertise(held.grant.permit)
        self.lane = self.open_lane()

    def open_lane(self, name: bytes | None = None) -> Lane:
        """A new lane, called `name` if one is given."""
        session, now_ms = self.session, int(self.session.clock.now() * 1000)
        lane, secrets = open_lane(session.identity, self.grants, now_ms, session.entropy, codec="lz4")
        if name is not None:
            secrets = draw_secrets(session.identity, name, self.grants, lane.schema, now_ms, session.entropy)
            lane.lane = name
            lane.refresh(secrets.topics, secrets.keys)
        self.node.put_locks(self.token, self.permit.identifier, secrets.locks)
        return lane

    def seal_batch(self, data: pa.RecordBatch, *, lane: Lane | None = None) -> Parcel:
        lane, session = lane or self.lane, self.session
        return lane.seal(
            Batch.of(lane.schema, data),
            now_ms=int(session.clock.now() * 1000),
            entropy=session.entropy.bytes(32),
            checkpoint=session.view.accepted,
        )

    def fork(self) -> Lane:
        """The lane as it is, once more: whoever seals in both equivocates."""
        return copy.copy(self.lane)

    def send(self, *parcels: Parcel | bytes) -> list[Outcome]:
        return self.node.publish(self.token, [p.encode() if isinstance(p, Parcel) else p for p in parcels])

    def resign(self, parcel: Parcel, *, key: SigningKey | None = None, **changes: Any) -> Parcel:
        """The parcel under a header that differs, signed again."""
        header = replace(parcel.header, **changes)
        key = key or self.session.identity.signing_key
        return Parcel(header, key.sign(SIGNATURE_CONTEXT, header.encoded), parcel.body)
