"""`tally verify`: a proof, a receipt or a checkpoint, checked offline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, home_option, open_session, read_trust
from tallystick.client.names import Names
from tallystick.errors import Forged, Malformed, Misuse

if TYPE_CHECKING:
    from tallystick.trust.receipt import AnchoredAt
    from tallystick.trust.trustfile import TrustFile

_Judged = tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]  # facts, and in words what is proved and what is not

_MEANT = {"proof": ("publisher", "topic"), "receipt": ("topic", "parcel"), "checkpoint": ()}  # of the options
_HINT = "tally prove, tally ledger receipt and tally ledger checkpoint write them; tally inspect says what a file is"


@click.command("verify")
@click.argument("file", type=KNOWN_FILE)
@click.option("--trust", "trust_file", type=KNOWN_FILE, required=True, help="The trust file of the instance.")
@click.option("--publisher", default=None, help="Who must have sealed it: an identifier; a name, with --home.")
@click.option("--topic", default=None, help="On which topic it must be: its token; a name, with --home.")
@click.option("--parcel", default=None, help="The hash of the parcel that a receipt is shown for.")
@home_option
@output.json_option
def command(file: Path, trust_file: Path, home: Path | None, tell: output.Tell, **named: str | None) -> None:
    """Check the proof, receipt or checkpoint in FILE with a trust file and nothing else; say what it proves and what it
    does not.

    Needs no network, no identity and no key. The exit code is 3 if it does not hold, or is of another publisher, topic
    or parcel than you expect. Say which you expect: what holds may be anybody's. Identifiers are what tally principal
    show and tally topic list print; names are looked up as the identity in --home, at its authority. A receipt needs
    the hash of its parcel: tally subscribe --origin shows that as _parcel.

    \b
    Examples:
      tally verify row.proof --trust trust.json
      tally verify row.proof --trust trust.json --publisher car --topic brakes --home owner
      tally verify parcel.receipt --trust trust.json --parcel HASH
      tally verify fleet.checkpoint --trust trust.json --json
    """
    trust, data = read_trust(trust_file), file.read_bytes()
    kind = _kind(data)
    try:
        origin = _origin(kind, data)
    except Malformed as error:
        raise Malformed(f"{file}: not a whole proof, receipt or checkpoint: {error}", hint=_HINT) from None
    if origin != trust.origin:
        raise Forged(
            f"{trust_file}: it is the trust file of instance {trust.instance.hex()} ({trust.name}), "
            f"the {kind} in {file} is of instance {origin.removeprefix('tallystick/')}",
            reason="wrong-instance",
            hint="--trust names the file of that instance: its operator has it, and whoever is enrolled there",
        )
    expected = _expected(kind, named, home)
    facts, proved, not_proved = _JUDGES[kind](data, trust, **expected)
    document = {"holds": True, "kind": kind, "instance": trust.instance, **facts, "expected": sorted(expected)}
    tell(
        {**document, "proved": proved, "not_proved": not_proved},
        f"the {kind} holds, under the trust file of instance {trust.instance.hex()} ({trust.name})",
        *(f"as expected: {what} {expected[what].hex()}" for what in sorted(expected)),
        *([f"row: {json.dumps(facts['row'], ensure_ascii=False)}"] if "row" in facts else []),
        *(f"proved: {statement}" for statement in proved),
        *(f"not proved: {gap}" for gap in not_proved),
    )


def _kind(data: bytes) -> str:
    """By the first byte: a receipt is an array of 11 fields, other arrays pass for proofs, a checkpoint is text."""
    if data[:1] == b"\x8b":
        return "receipt"
    return "proof" if b"\x80" <= data[:1] <= b"\x9f" else "checkpoint"


def _origin(kind: str, data: bytes) -> str:
    """The ledger that it says to be of."""
    from tallystick.parcel.header import Header
    from tallystick.parcel.prove import Proof
    from tallystick.trust.notes import Checkpoint, Note
    from tallystick.trust.receipt import Receipt

    if kind == "proof":
        return f"tallystick/{Header.decode(Proof.decode(data).header).instance.hex()}"
    note = Receipt.decode(data).anchor.note if kind == "receipt" else data
    return Checkpoint.decode(Note.decode(note).text).origin


def _proof(data: bytes, trust: TrustFile, **expected: bytes) -> _Judged:
    from tallystick.parcel.prove import Proof, verify_proof
    from tallystick.record.schema import Schema
    from tallystick.record.show import readable

    proven = verify_proof(data, trust, **expected)
    row = readable(Schema.decode(Proof.decode(data).schema).group_arrow(proven.group), proven.row)
    facts = output.fields(proven, "publisher token tenant lane sequence leaf parcel claimed_time_ms")
    facts |= {"anchored": proven.anchored and _anchored(proven.anchored), "row": row}
    return facts, proven.statements, proven.not_proven


def _receipt(data: bytes, trust: TrustFile, parcel: bytes, topic: bytes | None = None) -> _Judged:
    from tallystick.trust.receipt import Receipt

    at = Receipt.decode(data).verify(parcel, topic, trust)
    return output.fields(at, "parcel token node") | {"anchored": _anchored(at)}, at.statements, at.not_proven


def _checkpoint(data: bytes, trust: TrustFile) -> _Judged:
    from tallystick.trust.notes import verify_checkpoint

    found = verify_checkpoint(data, trust)
    facts = output.fields(found, "origin size root height time_ms state_root cosigners")
    facts |= {"validators": found.validators(trust), "time": output.show_time(found.time_ms)}
    return facts, found.statements(trust), found.not_proven(trust)


_JUDGES: dict[str, Callable[..., _Judged]] = {"proof": _proof, "receipt": _receipt, "checkpoint": _checkpoint}


def _anchored(at: AnchoredAt) -> dict[str, Any]:
    facts = output.fields(at, "partition offset height time_ms cosigners validators")
    return {**facts, "time": output.show_time(at.time_ms)}


def _expected(kind: str, named: Mapping[str, str | None], home: Path | None) -> dict[str, bytes]:
    """Identifiers of what is expected; only names need an identity, and its authority."""
    from tallystick.wire import is_identifier

    given = {what: text for what, text in named.items() if text is not None}
    for what in given:
        if what not in _MEANT[kind]:
            raise Misuse(f"--{what} means nothing for a {kind}", hint=f"leave --{what} out")
    parcel = given.pop("parcel", "")
    if kind == "receipt" and not re.fullmatch("[0-9a-f]{64}", parcel):
        hint = "tally subscribe --origin shows it as _parcel; else ask whoever handed you the receipt"
        raise Misuse("a receipt speaks of one parcel: --parcel must be its hash, 64 hex digits", hint=hint)
    found = {"parcel": bytes.fromhex(parcel)} if parcel else {}
    if all(map(is_identifier, given.values())):
        return found | {what: bytes.fromhex(text) for what, text in given.items()}
    with open_session(home) as session:
        names = Names(session)
        find = {"publisher": names.principal, "topic": names.topic}
        return found | {what: find[what](text) for what, text in given.items()}
