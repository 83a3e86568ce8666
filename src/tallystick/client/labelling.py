"""Labels, a publisher's side: rows of neighbouring subspaces are sealed together, and their parcel is labelled.

Grouping happens when rows are cut into parcels, labelling when a parcel is sealed, under the epoch of its lane: rows
that are sealed again later get the labels of that epoch. What cannot be labelled (the topic has no labels, the lane has
several topics, the code does not fit the schema, the key of the epoch is not here, the rows are of too many subspaces)
is sealed without, and every subscriber is sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tallystick.authority.grant import GrantLabels
from tallystick.client.grants import Advertised
from tallystick.parcel.header import TopicRef
from tallystick.parcel.labels import Labeller
from tallystick.policy.topic_code import TopicCode
from tallystick.record.batch import Batch
from tallystick.runtime.entropy import Entropy


class Labelling:
    """One thread may group while another labels."""

    def __init__(self, advertised: Advertised, entropy: Entropy) -> None:
        self._advertised, self._entropy = advertised, entropy
        self._read: tuple[bytes, Any, TopicCode | None] = b"", None, None  # the code as it came, for this schema
        self._labeller: tuple[tuple[bytes, bytes], Labeller] | None = None

    def grouped(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The batch's rows by subspace, or as they came where the topic has no labels."""
        granted = self._granted
        code = None if granted is None else self._code(granted.code, batch.schema)
        if code is None:
            return [batch]
        groups = code.group(_columns(batch))
        return [batch] if len(groups) == 1 else [batch.take(pa.array(rows)) for rows in groups]

    def labels(self, batch: Batch, topics: Sequence[TopicRef]) -> tuple[bytes, ...]:
        """The labels of a parcel with these rows."""
        granted = self._granted
        if granted is None or len(topics) > 1:
            return ()
        code, key = self._code(granted.code, batch.schema.arrow), dict(granted.keys).get(topics[0].epoch)
        if code is None or key is None:
            return ()
        if self._labeller is None or self._labeller[0] != (granted.code, key):
            self._labeller = (granted.code, key), Labeller(code, key)
        return self._labeller[1].labels(_columns(batch.data), self._entropy.bytes)

    @property
    def _granted(self) -> GrantLabels | None:
        held = self._advertised.held
        return held[0].grant.labels if len(held) == 1 else None

    def _code(self, data: bytes, schema: Any) -> TopicCode | None:
        """What it means over this schema; None where there is nothing to label by."""
        read = self._read
        if read[0] != data or read[1] != schema:
            code = TopicCode.decode(data)
            self._read = read = data, schema, code if code.dimensions and code.fits(schema) else None
        return read[2]


def _columns(batch: pa.RecordBatch) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
