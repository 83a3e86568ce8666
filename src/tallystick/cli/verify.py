"""`tally verify`: a proof or a receipt, checked offline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, home_option, open_session, read_trust
from tallystick.client.names import Names
from tallystick.errors import Forged, Malformed


@click.command("verify")
@click.argument("file", type=KNOWN_FILE)
@click.option("--trust", "trust_file", type=KNOWN_FILE, required=True, help="The trust file of the instance.")
@click.option("--publisher", default=None, help="Who must have sealed it: an identifier; a name, with --home.")
@click.option("--topic", default=None, help="On which topic it must be: its token; a name, with --home.")
@home_option
@output.json_option
def command(
    file: Path, trust_file: Path, publisher: str | None, topic: str | None, home: Path | None, tell: output.Tell
) -> None:
    """Check the proof in FILE with a trust file and nothing else; say what it proves and what it does not.

    Needs no network, no identity and no key. The exit code is 3 if the proof does not hold, or is of another publisher
    or topic than you expect. Say which you expect: a proof that holds may be anybody's. Identifiers are what tally
    principal show and tally topic list print; names are looked up as the identity in --home, at its authority.

    \b
    Examples:
      tally verify row.proof --trust trust.json
      tally verify row.proof --trust trust.json --publisher car --topic brakes --home owner
      tally verify row.proof --trust trust.json --json
    """
    from tallystick.parcel.header import Header
    from tallystick.parcel.prove import Proof, verify_proof
    from tallystick.record.schema import Schema
    from tallystick.record.show import readable

    trust, data = read_trust(trust_file), file.read_bytes()
    try:
        proof = Proof.decode(data)
    except Malformed as error:
        hint = "tally prove writes one; tally inspect says what a file is"
        raise Malformed(f"{file}: not a whole proof: {error}", hint=hint) from None
    if (instance := Header.decode(proof.header).instance) != trust.instance:
        raise Forged(
            f"{trust_file}: it is the trust file of instance {trust.instance.hex()} ({trust.name}), "
            f"the proof in {file} is of instance {instance.hex()}",
            reason="wrong-instance",
            hint="--trust names the file of that instance: its operator has it, and whoever is enrolled there",
        )
    expected = _expected(publisher, topic, home)
    proven = verify_proof(data, trust, **expected)
    schema = Schema.decode(proof.schema)
    row = readable(schema.group_arrow(proven.group), proven.row)
    anchored = proven.anchored and {
        **output.fields(proven.anchored, "partition offset height time_ms cosigners validators"),
        "time": output.show_time(proven.anchored.time_ms),
    }
    facts = {
        **output.fields(proven, "publisher token tenant lane sequence leaf parcel claimed_time_ms"),
        "expected": sorted(expected),
        "anchored": anchored,
        "proved": proven.statements,
        "not_proved": proven.not_proven,
    }
    tell(
        {"holds": True, "instance": trust.instance, **facts, "row": row},
        f"the proof holds, under the trust file of instance {trust.instance.hex()} ({trust.name})",
        *(f"as expected: {what} {expected[what].hex()}" for what in sorted(expected)),
        f"row: {json.dumps(row, ensure_ascii=False)}",
        *(f"proved: {statement}" for statement in proven.statements),
        *(f"not proved: {gap}" for gap in proven.not_proven),
    )


def _expected(publisher: str | None, topic: str | None, home: Path | None) -> dict[str, bytes]:
    """Identifiers of what is expected; only names need an identity, and its authority."""
    from tallystick.wire import is_identifier

    given = {what: text for what, text in (("publisher", publisher), ("topic", topic)) if text is not None}
    if all(map(is_identifier, given.values())):
        return {what: bytes.fromhex(text) for what, text in given.items()}
    with open_session(home) as session:
        names = Names(session)
        find = {"publisher": names.principal, "topic": names.topic}
        return {what: find[what](text) for what, text in given.items()}
