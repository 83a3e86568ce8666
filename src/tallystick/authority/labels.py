"""Labels: the codes that owners declare, the keys that publishers label with, and what permits carry for interests.

A topic has no labels until its owner declares a code (policy/topic_code.py); the text stays here, as names and schemas
do. Publishers get the code and a key per epoch in their grant. Subscribers get neither: they name their interest when
they ask for a permit, and the labels that cover it are put into the permit. So the authority learns interests, nodes
see labels, and a subscriber cannot make labels of what it did not ask for.

A permit's labels serve some epochs, of which the coming ones need not be announced yet. In an epoch that they do not
serve everything is sent, until the subscriber asks for another permit.
"""

from __future__ import annotations

from dataclasses import replace

from tallystick.authority.answers import Caller
from tallystick.authority.core import Core
from tallystick.authority.epochs import Epoch
from tallystick.authority.grant import GrantLabels
from tallystick.authority.topics import TopicRecord, Topics
from tallystick.errors import Misuse, Refused
from tallystick.parcel.labels import interest_labels
from tallystick.policy.content import read_interest
from tallystick.policy.topic_code import VERSION_MAX, TopicCode
from tallystick.record.schema import Schema
from tallystick.trust.permit import LABELS_MAX


class Labels:
    def __init__(self, core: Core, topics: Topics) -> None:
        self._core, self._store, self._topics = core, core.store, topics

    def declare(self, caller: Caller, token: bytes, data: bytes) -> bytes:
        """Take the code that its owner declares for a topic, or only show it where `data` is empty. Returns the code
        that counts, empty where there was never one."""
        if not data:
            self._topics.require_described(caller, token)
        else:
            topic = self._topics.require_owned(caller, token)
            with self._store.transaction():
                self._keep(token, self._next_version(topic, TopicCode.decode(data)))
        found = self._find(token)
        return b"" if found is None else found[0].encode()

    def _next_version(self, topic: TopicRecord, code: TopicCode) -> TopicCode:
        schema = Schema.decode(self._topics.require_text(topic))
        if not code.fits(schema.arrow):
            raise Misuse("code: it is not over the columns of the topic's newest schema")
        old = self._find(topic.token)
        version = 1 if old is None else old[0].version + 1
        if version > VERSION_MAX:
            raise Refused(f"the topic's code was changed {VERSION_MAX} times already", reason="too-many-codes")
        return replace(code, version=version)

    def grant(self, token: bytes, coming: list[Epoch], seen: int) -> GrantLabels | None:
        """What a publisher has not been told since version `seen`; `coming` are the epochs from the current one on."""
        found = self._find(token)
        if found is None:
            return None
        code, changed = found
        is_news = changed > seen
        numbers = [one.number for one in coming if is_news or one.changed > seen] if code.dimensions else []
        if not is_news and not numbers:
            return None
        keys = tuple((number, self._core.keys.master.label_key(token, number)) for number in numbers)
        return GrantLabels(code.encode() if is_news else b"", keys)

    def cover(self, topic: TopicRecord, interest: str, current: int) -> tuple[bytes, ...]:
        """The labels of a permit for this interest, in epochs around the current one: none where the topic has none,
        or they tell nothing about it. Raises `Misuse` where the interest makes no sense."""
        schema = Schema.decode(self._topics.require_text(topic))
        formula = read_interest(interest, schema.arrow)
        code, _ = self._find(topic.token) or (None, 0)
        if code is None or not code.dimensions or not code.fits(schema.arrow):
            return ()
        settings = self._core.settings
        back, ahead = settings.label_epochs_back, settings.label_epochs_ahead
        epochs = range(max(1, current - back), current + ahead + 1)
        return interest_labels(
            code,
            {epoch: self._core.keys.master.label_key(topic.token, epoch) for epoch in epochs},
            formula,
            strings_max=LABELS_MAX // (back + 1 + ahead),
            false_positives_max=settings.label_false_positives_max,
            draw=self._core.entropy.bytes,
        )

    def _find(self, token: bytes) -> tuple[TopicCode, int] | None:
        row = self._store.row("SELECT code, changed FROM labels WHERE token = ?", (token,))
        if row is None:
            return None
        return TopicCode.decode(self._core.keys.master.unwrap_own(_place(token), row[0])), row[1]

    def _keep(self, token: bytes, code: TopicCode) -> None:
        wrapped = self._core.keys.master.wrap_own(_place(token), code.encode(), self._core.entropy)
        changed = self._core.touch(token)
        self._store.write("INSERT OR REPLACE INTO labels VALUES (?, ?, ?)", (token, wrapped, changed))


def _place(token: bytes) -> str:
    return f"code of topic {token.hex()}"
