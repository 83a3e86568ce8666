"""What the commands share: the identity they act as, names instead of tokens, and the operator's way in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.output import Command
from tallystick.errors import Misuse, Refused, Unavailable

if TYPE_CHECKING:  # commands import what they need when they run
    from tallystick.authority.operator import OperatorClient
    from tallystick.client.session import Session
    from tallystick.identity.invitation import Invitation

_IDENTIFIER = re.compile(r"[0-9a-f]{32}")
_TOKEN = re.compile(r"topic [0-9a-f]{32}")
CAUGHT_UP_S = 15.0  # how long a command waits for the authority to see on the ledger what it just wrote

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))


def home_option(command: Command) -> Command:
    """Give a command `--home`: the identity it acts as."""
    return click.option(
        "--home",
        envvar="TALLY_HOME",
        type=click.Path(file_okay=False, path_type=Path),
        help="The identity to act as, a folder made by tally principal enrol (TALLY_HOME).",
    )(command)


@contextmanager
def open_session(home: Path | None) -> Iterator[Session]:
    """The session of the identity in `home`."""
    from tallystick.client.session import Session

    with Session.open(home) as session:
        try:
            yield session
        except Unavailable as error:
            error.hint = error.hint or (
                "is it running (tally up), and still there? tally principal address changes where it is looked for"
            )
            raise


class Names:
    """Names of topics and principals, as far as the identity may know them; identifiers are taken as well."""

    def __init__(self, session: Session) -> None:
        self.topics: list[tuple[bytes, str]] = []
        self.principals: list[tuple[bytes, str]] = []
        after = b""
        while True:
            page = session.authority.names(after)
            self.topics += page.topics
            self.principals += page.principals
            after = page.after
            if not after:
                break

    def topic(self, text: str) -> bytes:
        return _find(self.topics, text, "topic", "tally topic list shows those that you own or may describe")

    def principal(self, text: str) -> bytes:
        return _find(
            self.principals,
            text,
            "principal",
            "only the owner of a tenant sees its names; tally principal show prints an identity's own identifier",
        )

    def topic_name(self, token: bytes) -> str:
        return dict(self.topics).get(token) or token.hex()

    def principal_name(self, identifier: bytes) -> str:
        return dict(self.principals).get(identifier) or identifier.hex()


def _find(known: list[tuple[bytes, str]], text: str, what: str, hint: str) -> bytes:
    found = [identifier for identifier, name in known if name == text]
    if len(found) > 1:
        shown = ", ".join(identifier.hex() for identifier in found)
        raise Misuse(f'{what} "{text}": {len(found)} have this name', hint=f"say which: {shown}")
    if found:
        return found[0]
    if _IDENTIFIER.fullmatch(text):
        return bytes.fromhex(text)
    raise Misuse(f'{what} "{text}" is not known to this identity', hint=hint)


def wait_for_authority(session: Session, condition: Callable[[], bool], what: str) -> None:
    """Until the authority has followed the ledger so far that `condition` holds."""
    deadline = session.clock.monotonic() + CAUGHT_UP_S
    while not condition():
        if session.clock.monotonic() > deadline:
            raise Unavailable(
                f"{what}: it is on the ledger, but the authority has not followed yet", hint="try again in a moment"
            )
        session.clock.pause(0.1)


@contextmanager
def open_operator(folder: Path) -> Iterator[OperatorClient]:
    """The operator of the instance in `folder`, speaking to its running authority."""
    from tallystick.node.operator import operating
    from tallystick.runtime.sources import SystemClock, SystemEntropy

    require_instance(folder)
    with operating(folder, SystemClock(), SystemEntropy()) as operator:
        yield operator


def require_instance(folder: Path) -> Any:
    """The folders of the instance in `folder`."""
    from tallystick.node.instance import Folders

    folders = Folders(folder)
    if not folders.trust.exists():
        raise Misuse(f"{folder}: no instance is here", hint=f"tally init {folder} makes one")
    return folders


def invitation(folder: Path, code: str, authority_url: str | None, node_urls: tuple[str, ...]) -> Invitation:
    """What a newcomer is handed: the code with the addresses and the trust file of the instance in `folder`."""
    from tallystick.identity.invitation import Invitation
    from tallystick.node.addresses import read_address
    from tallystick.trust.trustfile import TrustFile

    folders = require_instance(folder)
    trust = TrustFile.parse(folders.trust.read_text())
    authority_url = authority_url or read_address(folders.authority).url
    return Invitation.of(code, trust, authority_url, node_urls or (read_address(folders.node).url,))


def url_options(command: Command) -> Command:
    """Give a command `--authority-url` and `--node-url`: what stands in an invitation."""
    command = click.option(
        "--node-url", "node_urls", multiple=True, help="Where newcomers reach a node, if not where it listens."
    )(command)
    return click.option("--authority-url", help="Where newcomers reach the authority, if not where it listens.")(
        command
    )


@contextmanager
def naming(topic: str) -> Iterator[None]:
    """Let errors speak of the topic by the name that was typed: node and ledger know its token only."""
    try:
        yield
    except (Refused, Unavailable, Misuse) as error:
        if not _IDENTIFIER.fullmatch(topic):
            error.args = (_TOKEN.sub(f'topic "{topic}"', str(error)),)
        raise


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def show_time(time_ms: int) -> str:
    """A time for people, in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def table(rows: list[list[str]]) -> list[str]:
    """Columns under one another; the last one is not padded."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def show_statistics(folder: Path, part: str, as_json: bool) -> None:
    """What the process of `folder` counts, as its `/metrics` have it; those of `part` without its name."""
    from prometheus_client.parser import text_string_to_metric_families

    from tallystick.node.addresses import read_address
    from tallystick.runtime.address import Address
    from tallystick.runtime.client import HttpClient
    from tallystick.runtime.sources import SystemClock, SystemEntropy

    listening = read_address(folder)
    with HttpClient(
        [Address(listening.url, listening.certificate.subject)], None, SystemClock(), SystemEntropy()
    ) as http:
        text = http.request("GET", "/metrics", attempts_max=1).body.decode()
    families = [one for one in text_string_to_metric_families(text) if one.samples]
    facts = {one.name.removeprefix("tally_").removeprefix(f"{part}_"): one.samples[0].value for one in families}
    numbers = {name: value if value % 1 else int(value) for name, value in facts.items()}
    if as_json:
        output.result_json({"url": listening.url, **numbers})
        return
    for line in table([["url", listening.url], *([name.replace("_", " "), str(n)] for name, n in numbers.items())]):
        output.result(line)
