"""`tally right`: what a principal may do on a topic, written on the ledger by the topic's owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from tallystick.cli import output
from tallystick.cli.common import wait_for_authority, with_session
from tallystick.client.names import Names
from tallystick.errors import Forged, Misuse

if TYPE_CHECKING:
    from tallystick.authority.answers import Resolved
    from tallystick.client.session import Session

WORDS = ("read", "write", "describe", "delete")


@click.group("right")
def command() -> None:
    """Grant, withdraw and list rights.

    \b
    Examples:
      tally right grant brakes car write --home owner
      tally right grant "trips/*" analyst read --home owner
    """


class RightRule(TypedDict):
    """What grant and withdraw are told."""

    topic: str
    principal: str
    operations: tuple[str, ...]
    deny: bool
    host: str
    tell: output.Tell


_rule_options = output.options(
    click.argument("topic"),
    click.argument("principal"),
    click.argument("operations", nargs=-1, required=True, type=click.Choice(WORDS)),
    click.option("--deny", is_flag=True, help="A rule that forbids; it beats every rule that allows."),
    output.default_option("--host", default="*", help="Only from this host, as the node sees it."),
)


@command.command("grant")
@_rule_options
@with_session
@output.json_option
def grant(session: Session, **rule: Unpack[RightRule]) -> None:
    """Let PRINCIPAL do OPERATIONS on TOPIC; read and write include describe.

    TOPIC may be the beginning of names and a star: then it holds for topics to come as well.

    \b
    Examples:
      tally right grant brakes car write --home owner
      tally right grant "trips/*" analyst read --home owner
      tally right grant brakes car write --deny --host 10.0.0.7 --home owner
    """
    _change(session, rule, withdraw=False)


@command.command("withdraw")
@_rule_options
@with_session
@output.json_option
def withdraw(session: Session, **rule: Unpack[RightRule]) -> None:
    """Take a rule back, as it was granted: its permits end, and a new epoch begins for readers.

    \b
    Examples:
      tally right withdraw brakes car write --home owner
    """
    _change(session, rule, withdraw=True)


def _change(session: Session, rule: RightRule, *, withdraw: bool) -> None:
    from tallystick.authority.answers import FORGET, REMEMBER, SHOW
    from tallystick.cli.entries import write

    topic, principal, words, deny = rule["topic"], rule["principal"], rule["operations"], rule["deny"]
    names = Names(session)
    identifier, operations = names.principal(principal), to_operations(words, deny)
    token = None if topic.endswith("*") else names.topic(topic)
    pattern = topic if token is None else names.topic_name(token)
    mode = FORGET if withdraw else REMEMBER

    def resolve(how: int) -> Resolved:
        return session.authority.resolve_rights(
            pattern, identifier, operations, allow=not deny, host=rule["host"], mode=how
        )

    resolved = resolve(mode)
    matching = {one for one, name in names.topics if _matches(pattern, name)}
    if not matching.issuperset(resolved.tokens):
        raise Forged(f'right: the authority names topics that do not match "{pattern}"', reason="slipped-in")
    if token is not None and resolved.tokens != (token,):
        raise Misuse(f'topic "{topic}" is not yours to grant rights on', hint="its owner, or its tenant's, may")
    if resolved.entries:
        write(session, names, *resolved.entries)
        wait_for_authority(session, lambda: not resolve(mode if withdraw else SHOW).entries, "the right")
    done, to = ("withdrew", "from") if withdraw else ("granted", "to")
    where = f"{topic}: {output.plural(len(resolved.entries), 'topic')} changed" if topic.endswith("*") else topic
    rule["tell"](
        {done: [token.hex() for token in resolved.tokens], "changed": len(resolved.entries)},
        f"{done} {'deny ' if deny else ''}{', '.join(words)} {to} {principal} on {where}",
        note="" if resolved.entries else "note: nothing changed, it was so already",
    )


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def to_operations(words: tuple[str, ...], deny: bool = False) -> int:
    from tallystick.trust.right import Right

    operations = 0
    for word in words:
        operations |= Right[word.upper()]
        if not deny and word in ("read", "write"):
            operations |= Right.DESCRIBE  # no permit without it
    return int(operations)


@command.command("list")
@click.argument("topic")
@click.argument("principal", required=False)
@with_session
@output.json_option
def list_(session: Session, topic: str, principal: str | None, tell: output.Tell) -> None:
    """List the rules of TOPIC, for PRINCIPAL or for every principal that the identity knows by name.

    \b
    Examples:
      tally right list brakes --home owner
    """
    from tallystick.ledger.contracts.access import RIGHTS
    from tallystick.trust.right import Right

    names = Names(session)
    token = names.topic(topic)
    found, rows = [], []
    for identifier in [names.principal(principal)] if principal else [one for one, _ in names.principals]:
        row = session.view.row(RIGHTS(token, identifier))
        for allow, operations, host in [] if row is None else row.rules:
            name, rule = names.principal_name(identifier), "allow" if allow else "deny"
            words = [word for word in WORDS if operations & Right[word.upper()]]
            told = {"principal": identifier.hex(), "name": name, "rule": rule, "operations": words, "host": host}
            found.append(told)
            rows.append([name, rule, ", ".join(words), f"from {host}"])
    tell(found, *output.table(rows), none=f"no rules; tally right grant {topic} PRINCIPAL read makes one")
