"""A subscriber's interest: the rows of an opened batch that it means, exactly.

Labels spare a subscriber whole parcels, never rows, and they may let through what is not wanted; what is delivered is
decided here, after opening, whatever the topic has. The interest is read anew where the topic's schema has grown: a
column may be wider then, and its values are compared as what they are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tallystick.later import np
from tallystick.policy.content import read_interest, wanted_rows
from tallystick.policy.formula import Formula
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema

Places: TypeAlias = "np.ndarray[Any, np.dtype[np.intp]]"


class Interest:
    def __init__(self, text: str) -> None:
        """Everything, where the text is empty."""
        self.text = text
        self._read: tuple[Schema, Formula] | None = None

    def __bool__(self) -> bool:
        return bool(self.text)

    def formula(self, schema: Schema) -> Formula:
        """What the text means over this schema; raises `Misuse`."""
        if self._read is None or self._read[0] != schema:
            self._read = schema, read_interest(self.text, schema.arrow)
        return self._read[1]

    def only(self, batch: Batch, schema: Schema) -> tuple[Batch, Places | None]:
        """The rows that are meant and their places in the batch; None where it is all of them. `schema` is the topic's,
        of whose columns the batch may lack some."""
        if not self.text:
            return batch, None
        mask = wanted_rows(self.formula(schema), batch.data)
        return (batch, None) if mask.all() else (batch.filter(mask), np.flatnonzero(mask))
