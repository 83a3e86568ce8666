"""`tally right`: what a principal may do on a topic, written on the ledger by the topic's owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tallystick.cli import output
from tallystick.cli.common import Names, home_option, open_session, plural, table, wait_for_authority
from tallystick.cli.output import Command
from tallystick.errors import Misuse

WORDS = ("read", "write", "describe", "delete")


@click.group("right")
def command() -> None:
    """Grant, withdraw and list rights.

    \b
    Examples:
      tally right grant brakes car write --home owner
      tally right grant "trips/*" analyst read --home owner
    """


def _arguments(command: Command) -> Command:
    for decorate in (
        output.json_option,
        home_option,
        click.option("--host", default="*", show_default=True, help="Only from this host, as the node sees it."),
        click.option("--deny", is_flag=True, help="A rule that forbids; it beats every rule that allows."),
        click.argument("operations", nargs=-1, required=True, type=click.Choice(WORDS)),
        click.argument("principal"),
        click.argument("topic"),
    ):
        command = decorate(command)
    return command


@command.command("grant")
@_arguments
def grant(
    topic: str,
    principal: str,
    operations: tuple[str, ...],
    deny: bool,
    host: str,
    home: Path | None,
    as_json: bool,
) -> None:
    """Let PRINCIPAL do OPERATIONS on TOPIC; read and write include describe.

    TOPIC may be the beginning of names and a star: then it holds for topics to come as well.

    \b
    Examples:
      tally right grant brakes car write --home owner
      tally right grant "trips/*" analyst read --home owner
      tally right grant brakes car write --deny --host 10.0.0.7 --home owner
    """
    _change(topic, principal, operations, deny, host, home, as_json, withdraw=False)


@command.command("withdraw")
@_arguments
def withdraw(
    topic: str,
    principal: str,
    operations: tuple[str, ...],
    deny: bool,
    host: str,
    home: Path | None,
    as_json: bool,
) -> None:
    """Take a rule back, as it was granted: its permits end, and a new epoch begins for readers.

    \b
    Examples:
      tally right withdraw brakes car write --home owner
    """
    _change(topic, principal, operations, deny, host, home, as_json, withdraw=True)


def _change(
    topic: str,
    principal: str,
    words: tuple[str, ...],
    deny: bool,
    host: str,
    home: Path | None,
    as_json: bool,
    *,
    withdraw: bool,
) -> None:
    from tallystick.authority.answers import FORGET, REMEMBER, SHOW

    operations = _operations(words, deny)
    with open_session(home) as session:
        names = Names(session)
        identifier = names.principal(principal)
        pattern = topic if topic.endswith("*") else names.topic_name(names.topic(topic))
        mode = FORGET if withdraw else REMEMBER

        def resolve(how: int) -> Any:
            return session.authority.resolve_rights(
                pattern, identifier, operations, allow=not deny, host=host, mode=how
            )

        resolved = resolve(mode)
        if not resolved.tokens and not topic.endswith("*"):
            raise Misuse(f'topic "{topic}" is not yours to grant rights on', hint="its owner, or its tenant's, may")
        if resolved.entries:
            session.author.write(*resolved.entries)
            wait_for_authority(session, lambda: not resolve(mode if withdraw else SHOW).entries, "the right")
    done = "withdrew" if withdraw else "granted"
    if as_json:
        output.result_json({done: [token.hex() for token in resolved.tokens], "changed": len(resolved.entries)})
        return
    rule, where = f"{'deny ' if deny else ''}{', '.join(words)}", topic
    if topic.endswith("*"):
        where = f"{topic}: {plural(len(resolved.entries), 'topic')} changed"
    output.result(f"{done} {rule} {'from' if withdraw else 'to'} {principal} on {where}")
    if not resolved.entries:
        output.note("note: nothing changed, it was so already")


def _operations(words: tuple[str, ...], deny: bool) -> int:
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
@home_option
@output.json_option
def list_(topic: str, principal: str | None, home: Path | None, as_json: bool) -> None:
    """List the rules of TOPIC, for PRINCIPAL or for every principal that the identity knows by name.

    \b
    Examples:
      tally right list brakes --home owner
    """
    from tallystick.ledger.contracts.access import RIGHTS
    from tallystick.trust.right import Right

    with open_session(home) as session:
        names = Names(session)
        token = names.topic(topic)
        wanted = [names.principal(principal)] if principal else [identifier for identifier, _ in names.principals]
        found = []
        for identifier in wanted:
            row = session.view.row(RIGHTS(token, identifier))
            for allow, operations, host in [] if row is None else row.rules:
                words = [word for word in WORDS if operations & Right[word.upper()]]
                found.append(
                    {
                        "principal": identifier.hex(),
                        "name": names.principal_name(identifier),
                        "rule": "allow" if allow else "deny",
                        "operations": words,
                        "host": host,
                    }
                )
    if as_json:
        output.result_json(found)
        return
    rows = [[one["name"], one["rule"], ", ".join(one["operations"]), f"from {one['host']}"] for one in found]
    for line in table(rows):
        output.result(line)
