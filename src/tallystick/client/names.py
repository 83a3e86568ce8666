"""Names instead of tokens and identifiers, as far as the authority tells them to an identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session


class Names:
    """Names of topics and principals, as far as the identity may know them; identifiers are taken as well."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.topics: list[tuple[bytes, str]] = []
        self.principals: list[tuple[bytes, str]] = []
        after: bytes | None = b""
        while after is not None:
            page = session.authority.names(after)
            self.topics += page.topics
            self.principals += page.principals
            after = page.after or None
        self.topic_names, self.principal_names = dict(self.topics), dict(self.principals)

    def topic(self, text: str) -> bytes:
        """The token that `text` names. A name leads to one's own tenant: another's topic is named by its token, or
        whoever lets us describe a topic of the same name would be taken for us."""
        others = [token for token, name in self.topics if name == text and not self.is_own(token)]
        hint = "tally topic list shows those that you own or may describe"
        if others:
            hint = f"another tenant's is named by its token: {', '.join(token.hex() for token in others)}"
        return _find([known for known in self.topics if known[0] not in others], text, "topic", hint)

    def is_own(self, token: bytes) -> bool:
        from tallystick.ledger.contracts.topics import TOPICS

        row = self._session.view.row(TOPICS(token))
        return row is not None and row.tenant == self._session.identity.tenant

    def principal(self, text: str) -> bytes:
        hint = "only the owner of a tenant sees its names; tally principal show prints an identity's own identifier"
        return _find(self.principals, text, "principal", hint)

    def topic_name(self, token: bytes) -> str:
        return self.topic_names.get(token) or token.hex()

    def principal_name(self, identifier: bytes) -> str:
        return self.principal_names.get(identifier) or identifier.hex()


def _find(known: list[tuple[bytes, str]], text: str, what: str, hint: str) -> bytes:
    from tallystick.wire import is_identifier

    if is_identifier(text):  # before any name: a newcomer could have called itself so
        return bytes.fromhex(text)
    found = [identifier for identifier, name in known if name == text]
    if len(found) > 1:
        shown = ", ".join(identifier.hex() for identifier in found)
        raise Misuse(f'{what} "{text}": {len(found)} have this name', hint=f"say which: {shown}")
    if found:
        return found[0]
    raise Misuse(f'{what} "{text}" is not known to this identity', hint=hint)
