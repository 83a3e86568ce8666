"""Who may come in: the one browser that was given the token, and no page of anybody else's that it has open.

Threat: every page that the viewer's browser shows may send requests to loopback. Another site rebinds its own name to
127.0.0.1: `Host` must be exactly ours. Another port of loopback is the same site, and cookies do not know ports: the
cookie's path is random, so that no other server is ever sent it, and `Sec-Fetch-Site` must say that the request came
from our own pages or from the viewer's hand. What pages ask while they are open carries a header of our own, which no
other origin may send unasked. A page of ours in somebody's frame, or loading anything from elsewhere, is the policy's
to stop. A browser that loads an address before the viewer chose it says so (`Sec-Purpose`), and gets nothing: looking
at records leaves an operation. Other users of the machine reach the port and know neither token nor path.

The token comes once, is good once, and is told by the terminal and a file of mode 0600, never by an argument or a log.
The path is kept in the viewer's home, so that a bookmark holds until the home is gone. It is no secret by which anybody
comes in.
"""

from __future__ import annotations

from hmac import compare_digest
from urllib.parse import parse_qs

from tallystick.errors import Refused
from tallystick.runtime.http1 import Answer
from tallystick.runtime.router import Request
from tallystick.runtime.sources import Entropy

COOKIE = "tally-console"
POLL_HEADER = b"tally-console"
_OWN = ("same-origin", "none")

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Door:
    def __init__(self, path: str, entropy: Entropy) -> None:
        """`path` begins every address but that of the exchange."""
        self.path, self.host = path, ""  # the host is known when the server listens
        self.token = entropy.bytes(24).hex()
        self._cookie = entropy.bytes(24).hex()
        self._is_spent = False

    def check(self, request: Request) -> None:
        """Raise `Refused` unless the request comes from the browser that was let in."""
        self._check_host(request)
        self._check_site(request)
        self._check_purpose(request)
        self._check_cookie(request)

    async def exchange(self, request: Request) -> Answer:
        """The cookie for the token, once. Raises `Refused`."""
        self._check_host(request)
        self._check_site(request)
        self._check_purpose(request)
        self._spend(parse_qs(request.query).get("token", [""])[0])
        cookie = f"{COOKIE}={self._cookie}; Path={self.path}; HttpOnly; SameSite=Strict"
        return Answer(303, headers={**HEADERS, "location": f"{self.path}/", "set-cookie": cookie})

    def _check_host(self, request: Request) -> None:
        if request.authority != self.host:
            raise Refused(f"console: host {request.authority!r} is not ours", reason="stranger")

    def _check_site(self, request: Request) -> None:
        if (request.header(b"sec-fetch-site") or b"").decode("latin-1") not in _OWN:
            raise Refused("console: asked by another site", reason="stranger")

    def _check_purpose(self, request: Request) -> None:
        """An address that a browser loads before anybody asks for it would read records, or spend the token."""
        if request.header(b"sec-purpose") is not None:
            raise Refused("console: loaded beforehand", reason="stranger")

    def _check_cookie(self, request: Request) -> None:
        """Among those that other servers of this host have set, of our name or badly formed."""
        given = (request.header(b"cookie") or b"").split(b";")
        ours = f"{COOKIE}={self._cookie}".encode()
        if not any(compare_digest(one.strip(), ours) for one in given):
            raise Refused("console: no cookie of ours", reason="stranger")

    def _spend(self, token: str) -> None:
        if self._is_spent or not compare_digest(token.encode(), self.token.encode()):
            raise Refused("console: not the token, or used before", reason="stranger")
        self._is_spent = True
