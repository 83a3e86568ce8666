"""An invitation: the one thing that a newcomer has to copy.

It carries the authority's code (good once, expiring), where to go, and what to believe: the instance and the hash of
the trust file. The trust file itself comes with the certificate and counts only if it is the one of this hash, so that
whoever answers under the address, but is not the authority meant, can hand out nothing. Whoever copies an invitation
before it is used can use it: hand it over like a password.

    tally-invite- base64url( wire [1, code, instance, trust hash, authority url, [node url, …]] )
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass

from tallystick import wire
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.trust.trustfile import TrustFile
from tallystick.wire import Fields

PREFIX = "tally-invite-"
TEXT_MAX = 8192
URLS_MAX = 16


@dataclass(frozen=True)
class Invitation:
    code: str
    instance: bytes
    trust_hash: bytes
    authority_url: str
    node_urls: tuple[str, ...]

    @classmethod
    def of(cls, code: str, trust: TrustFile, authority_url: str, node_urls: tuple[str, ...]) -> Invitation:
        return cls(code, trust.instance, trust_hash(trust), authority_url, node_urls)

    def encode(self) -> str:
        fields = [1, self.code, self.instance, self.trust_hash, self.authority_url, list(self.node_urls)]
        return PREFIX + urlsafe_b64encode(wire.encode(fields)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Invitation:
        """Raises `Misuse` for what is no invitation at all, `Malformed` for a damaged one."""
        text = "".join(text.split())  # mail programs wrap long lines
        if not text.startswith(PREFIX) or len(text) > TEXT_MAX:
            raise Misuse(f"not an invitation: expected {PREFIX}…", hint="tally principal invite prints one")
        body = text.removeprefix(PREFIX)
        try:
            data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
        except (Base64Error, ValueError) as error:
            raise Malformed("invitation: not base64", hint="was it copied whole?") from error
        try:
            fields = Fields.parse(data, "invitation", 6)
        except Malformed as error:
            raise Malformed(str(error), hint="was it copied whole?") from error
        fields.version(1)
        return cls(
            code=fields.text(64),
            instance=fields.octets(32),
            trust_hash=fields.octets(32),
            authority_url=fields.text(1024),
            node_urls=tuple(url.text(1024) for url in fields.each(URLS_MAX, 1)),
        )

    def check_trust(self, trust: TrustFile) -> None:
        """Raise `Forged` unless this is the trust file that the invitation names."""
        if trust.instance != self.instance or trust_hash(trust) != self.trust_hash:
            raise Forged(
                "enrolment: the trust file is not the one that the invitation names",
                hint="ask for a new invitation; if it happens again, somebody stands in between",
            )


def trust_hash(trust: TrustFile) -> bytes:
    return named_hash("tallystick trust hash 1", trust.content)
