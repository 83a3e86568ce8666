"""What the commands share: the identity they act as, names instead of tokens, and the operator's way in."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec

import click

from tallystick.cli import output
from tallystick.client import spans
from tallystick.client.spans import read_ms as read_ms
from tallystick.errors import Misuse, Refused, Unavailable, Withheld, name_cause

if TYPE_CHECKING:  # commands import what they need when they run
    from tallystick.authority.operator import OperatorClient
    from tallystick.client.mesh_keyring import MeshKeyring
    from tallystick.client.names import Names
    from tallystick.client.publish import Publisher
    from tallystick.client.session import Session
    from tallystick.identity.choices import CarrierChoice
    from tallystick.identity.invitation import Invitation
    from tallystick.node.instance import Folders
    from tallystick.runtime.sources import SystemClock, SystemEntropy
    from tallystick.trust.trustfile import TrustFile

_TOKEN = re.compile(r"topic [0-9a-f]{32}")
CAUGHT_UP_S = 15.0  # how long a command waits for the authority to see on the ledger what it just wrote

FOLDER, FILE = click.Path(file_okay=False, path_type=Path), click.Path(dir_okay=False, path_type=Path)
KNOWN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PORT = click.IntRange(0, 65535)

folder_argument = click.argument("folder", metavar="DIR", type=FOLDER)
home_option = click.option(
    "--home",
    envvar="TALLY_HOME",
    type=FOLDER,
    help="The identity to act as, a folder made by tally principal enrol (TALLY_HOME, tally use).",
)
P = ParamSpec("P")


def with_session(command: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
    """Give a command `--home`, and the session of the identity that is there as its first argument."""

    @wraps(command)
    def call(home: Path | None, *args: P.args, **kwargs: P.kwargs) -> None:
        with open_session(home) as session:
            command(session, *args, **kwargs)

    return home_option(call)


@contextmanager
def open_session(home: Path | None, topic: str | None = None, choice: CarrierChoice | None = None) -> Iterator[Session]:
    """The session of the identity in `home`; for a topic, the one over whose carrier it goes, or over this one."""
    from tallystick.client.session import Session

    with Session.open(home, topic=topic, choice=choice) as session:
        try:
            yield session
        except Unavailable as error:
            name_cause(error, session.trouble())
            error.hint = error.hint or (
                "is it running (tally up), and still there? tally principal address changes where it is looked for"
            )
            raise
        except Withheld as error:
            if error.reason == "stale-head":
                name_cause(error, session.trouble())
            raise


def left_in_spool(session: Session, publisher: Publisher, told: str) -> Unavailable:
    """The error of a publisher whose parcels did not get through in time; `told` says how many."""
    cause = session.trouble() or publisher.statistics().last_error or "node and authority are well: it takes longer"
    return Unavailable(
        f"{told} still in the spool of {session.identity.home}; {cause}",
        hint="when that is mended, tally spool flush sends them; so does the next publish to the topic",
    )


def wait_for_authority(session: Session, condition: Callable[[], bool], what: str) -> None:
    """Wait until the authority has followed the ledger so far that `condition` holds."""
    deadline = session.clock.monotonic() + CAUGHT_UP_S
    while not condition():
        if session.clock.monotonic() > deadline:
            trouble = f"{what}: it is on the ledger, but the authority has not followed yet"
            raise Unavailable(trouble, hint="try again in a moment")
        session.clock.pause(0.1)


def open_operator(folder: Path) -> AbstractContextManager[OperatorClient]:
    """The operator of the instance in `folder`, speaking to its running authority."""
    from tallystick.node.operator import operating

    require_instance(folder)
    return operating(folder, *machine())


def require_instance(folder: Path) -> Folders:
    """The folders of the instance in `folder`."""
    from tallystick.node.instance import Folders

    folders = Folders(folder)
    if not folders.trust.exists():
        raise Misuse(f"{folder}: no instance is here", hint=f"tally init {folder} makes one")
    return folders


def read_trust(file: Path) -> TrustFile:
    from tallystick.trust.trustfile import TrustFile

    try:
        return TrustFile.parse(file.read_text(errors="replace"))
    except Refused as error:
        error.args = (f"{file}: {error}",)
        raise


class Machine(NamedTuple):
    """What only this machine knows: the time, and random bytes."""

    clock: SystemClock
    entropy: SystemEntropy


def machine() -> Machine:
    from tallystick.runtime.sources import SystemClock, SystemEntropy

    return Machine(SystemClock(), SystemEntropy())


def now_ms() -> int:
    return int(machine().clock.now() * 1000)


def read_time(text: str) -> datetime | None:
    """As `spans.read_time`, by this machine's clock."""
    return spans.read_time(text, now_ms())


def invitation(folder: Path, code: str, authority_url: str | None, node_urls: tuple[str, ...]) -> Invitation:
    """What a newcomer is handed: the code with the addresses and the trust file of the instance in `folder`."""
    from tallystick.identity.invitation import Invitation
    from tallystick.node.instance import read_address

    folders = require_instance(folder)
    authority_url = authority_url or read_address(folders.authority).url
    node_urls = node_urls or (read_address(folders.node).url,)
    return Invitation.of(code, read_trust(folders.trust), authority_url, node_urls)


# What stands in an invitation.
url_options = output.options(
    click.option("--authority-url", help="Where newcomers reach the authority, if not where it listens."),
    click.option(
        "--node-url", "node_urls", multiple=True, help="Where newcomers reach a node, if not where it listens."
    ),
)


def output_option(text: str | None = None) -> output.Decorator:
    """Give a command `-o`, as its argument `file`: a file to write, which may not exist yet."""
    return click.option("-o", "--output", "file", type=FILE, required=True, callback=not_written_yet, help=text)


def not_written_yet(_context: click.Context, _parameter: click.Parameter, file: Path) -> Path:
    if file.exists():
        raise Misuse(f"{file} exists already", hint="name another file")
    return file


def on_signal(act: Callable[[], None]) -> None:
    """Act when somebody asks this process to end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: act())


@contextmanager
def naming(topic: str) -> Iterator[None]:
    """Let errors speak of the topic by the name that was typed: node and ledger know its token only."""
    try:
        yield
    except (Refused, Unavailable, Misuse) as error:
        from tallystick.wire import is_identifier

        if not is_identifier(topic):
            error.args = (_TOKEN.sub(f'topic "{topic}"', str(error)),)
        raise


def show_statistics(folder: Path, part: str, tell: output.Tell) -> None:
    """Show what the process of `folder` counts in its `/metrics`, without the name of its `part`."""
    from tallystick.client.counts import by_label, read_counts
    from tallystick.node.instance import read_address
    from tallystick.runtime.address import Address
    from tallystick.runtime.client import HttpClient

    listening = read_address(folder)
    address = Address(listening.url, listening.certificate.subject)
    with HttpClient([address], None, *machine()) as http:
        text = http.request("GET", "/metrics", attempts_max=1).body.decode()
    told = {"url": listening.url, **read_counts(text, part)}
    tell(told, *output.fact_lines({name: by_label(value) for name, value in told.items()}))


def move_to_node(home: Path | None, url: str) -> None:
    """Let the identity go to the node that answers there; those that it knew stay known."""
    from dataclasses import replace

    from tallystick.identity.folder import Identity
    from tallystick.identity.nodes import ask_node

    identity = Identity.load(home)
    found = ask_node(url, identity.trust, *machine(), insecure=False)
    others = tuple(one for one in identity.nodes if one.subject != found.subject)
    replace(identity, node_urls=(url,), nodes=(found, *others)).save()


def own_choice(home: Path | None, scheme: str, url: str | None, *, every_topic: bool = False) -> CarrierChoice | None:
    """The identity's own node of a carrier and the topics that go there; None where all of them do, now or before."""
    from tallystick.identity.choices import CarrierChoice, choice_of
    from tallystick.identity.folder import Identity
    from tallystick.identity.nodes import ask_node

    if url is not None and every_topic:
        move_to_node(home, url)
        return None
    identity = Identity.load(home)
    known = choice_of(identity.home, scheme)
    if url is None:
        return known
    found = ask_node(url, identity.trust, *machine(), insecure=False)
    return CarrierChoice(f"{scheme}://", url, found, {} if known is None else known.topics)


def choose_topics(choice: CarrierChoice, home: Path, names: Names, tokens: Sequence[bytes]) -> None:
    """Let these go over the carrier as well, from now on."""
    from dataclasses import replace

    from tallystick.identity.choices import choose_carrier

    own = {names.topic_name(token): token.hex() for token in tokens if names.is_own(token)}
    others = {token.hex(): token.hex() for token in tokens if not names.is_own(token)}  # never by a name
    choose_carrier(home, replace(choice, topics={**choice.topics, **own, **others}))


def leave_topics(session: Session, names: Names, topics: Sequence[str]) -> MeshKeyring:
    """Forget the carrier keys of TOPICS, and let them go where the identity's others go. Returns what is left."""
    from dataclasses import replace

    from tallystick.client.mesh_keyring import MeshKeyring
    from tallystick.identity.choices import choose_carrier

    keyring = MeshKeyring(session.identity, session.authority, session.clock, session.entropy)
    tokens = [names.topic(topic) for topic in topics]
    for token in tokens:
        keyring.forget(token)
    if (choice := session.choice) is not None:
        left = {name: token for name, token in choice.topics.items() if bytes.fromhex(token) not in tokens}
        choose_carrier(session.identity.home, replace(choice, topics=left))
    return keyring
