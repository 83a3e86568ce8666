"""`tally detect`: learn what is usual on a vehicle's CAN bus, find what is not, and say which signal lied."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import FILE, FOLDER, KNOWN_FILE, home_option, machine
from tallystick.errors import Malformed, Misuse, Refused

if TYPE_CHECKING:
    import pyarrow as pa

    from tallystick.crypto.signatures import SigningKey, VerifyKey
    from tallystick.fleet.dbc import Dbc
    from tallystick.fleet.detect.edge import BusWatch
    from tallystick.fleet.detect.model import DetectionFile
    from tallystick.fleet.detect.profile import Profile
    from tallystick.fleet.detect.readers import Capture

SLICE_FRAMES = 200_000
SHOWN = 20  # alerts on a terminal

vehicle_option = click.option("--vehicle", required=True, metavar="VIN", help="The vehicle, as its rows call it.")
profile_option = click.option("--profile", "profile_file", type=KNOWN_FILE, required=True, help="Its signed profile.")
dbc_option = click.option("--dbc", "dbc_file", type=KNOWN_FILE, help="Names signals: comments are their VSS paths.")
out_option = click.option("--out", type=FILE, required=True, help="The file to write.")
key_option = click.option(
    "--key", type=FILE, help="Sign with the key in this file, made where there is none, instead of the identity's."
)
issue_option = click.option(
    "--issue", type=click.IntRange(1), help="Higher than that of the file before [default: 1, or the next of --merge]."
)
signers_option = click.option(
    "--signed-by",
    "signers",
    multiple=True,
    metavar="KEY",
    help="Believe this key, hex digits or a .pub file, instead of the identity's own; may be repeated.",
)


@click.group("detect")
def command() -> None:
    """Find intruders on a CAN bus.

    \b
    Examples:
      tally detect calibrate monday.log tuesday.log --vehicle WVW42 --out profile.cbor --key maker.key
      tally detect score friday.log --vehicle WVW42 --profile profile.cbor --signed-by maker.key.pub \\
          --out alerts.parquet
      tally detect explain 3 --alerts alerts.parquet --capture friday.log --profile profile.cbor \\
          --signed-by maker.key.pub --svg alert.svg
    """


@command.command("calibrate")
@click.argument("captures", nargs=-1, required=True, type=KNOWN_FILE)
@vehicle_option
@out_option
@click.option("--merge", "old", type=KNOWN_FILE, help="Widen this profile by what the captures show.")
@issue_option
@key_option
@signers_option
@home_option
@output.json_option
def calibrate(
    captures: tuple[Path, ...],
    vehicle: str,
    out: Path,
    old: Path | None,
    issue: int | None,
    key: Path | None,
    signers: tuple[str, ...],
    home: Path | None,
    tell: output.Tell,
) -> None:
    """Learn what is usual on a bus from benign captures, an uninterrupted drive each, and sign it.

    What an attacker does meanwhile is learnt as usual. Drives of some minutes each tell the most.

    \b
    Examples:
      tally detect calibrate monday.log tuesday.log --vehicle WVW42 --out profile.cbor --home car
      tally detect calibrate friday.log --merge profile.cbor --vehicle WVW42 --out next.cbor --home car
    """
    from tallystick.fleet.detect.model import PROFILE, sign_file
    from tallystick.fleet.detect.profile import learn, merge

    before = _open_file(PROFILE, old, vehicle, _believed(signers, home, key)) if old else None
    read = [_read_benign(one) for one in captures]
    profile = learn([one.frames for one in read], [one.name for one in read])
    if before is not None:
        profile = merge([_profile_of(before), profile])
    sources = [*(before.sources if before else ()), *map(_source, captures)]
    issue = issue or (before.issue if before else 0) + 1
    signer = _signer(key, home)
    made = sign_file(PROFILE, profile.encode(), signer, issue=issue, vehicle=vehicle, sources=sources)
    output.write_result(out, made.encode())
    kinds = Counter(kind for one in profile.ids.tolist() for _, _, kind in profile.fields(one))
    told: dict[str, Any] = {
        "file": str(out),
        "vehicle": vehicle,
        "issue": issue,
        "signer": signer.public.raw,
        "seconds": round(profile.seconds, 3),
        "identifiers": len(profile.ids),
        "fields": dict(sorted(kinds.items())),
        "off": profile.off,
    }
    people = {**told, "fields": ", ".join(f"{count} {kind}" for kind, count in told["fields"].items())}
    people["off"] = "; ".join(f"{check}: {why}" for check, why in profile.off.items()) or "none"
    longer = "calibrate on longer drives, or on all of them at once: some checks are off"
    advice = longer if profile.off else f"tally detect score … --profile {out}"
    tell(told, *output.fact_lines(people), note=f"next: {advice}")


@command.command("score")
@click.argument("capture", type=KNOWN_FILE)
@vehicle_option
@profile_option
@signers_option
@click.option("--held", type=FILE, help="Remembers the last issue, so that no older is taken [default: PROFILE.held].")
@click.option("--model", type=KNOWN_FILE, help="Let the network of this signed model look too.")
@dbc_option
@click.option("--out", help="Write alerts to this file (.parquet or .jsonl).")
@click.option("--topic", help="Publish alerts to this topic.")
@home_option
@output.progress_option
@output.json_option
def score(
    capture: Path,
    vehicle: str,
    profile_file: Path,
    signers: tuple[str, ...],
    held: Path | None,
    model: Path | None,
    dbc_file: Path | None,
    out: str | None,
    topic: str | None,
    home: Path | None,
    show_progress: bool,
    tell: output.Tell,
) -> None:
    """Watch a capture: print the alerts, write them to a file, or publish them.

    \b
    Examples:
      tally detect score friday.log --vehicle WVW42 --profile profile.cbor --home car --out alerts.parquet
      tally detect score friday.log --vehicle WVW42 --profile profile.cbor --home car --topic alerts
    """
    from tallystick.cli.fleet import Destination, destination
    from tallystick.fleet.detect.edge import BusWatch
    from tallystick.fleet.detect.model import MODEL, PROFILE, IssueMemory, unpack
    from tallystick.fleet.detect.network import BusNetwork
    from tallystick.fleet.detect.readers import read_capture

    if out == "-":
        raise Misuse("--out - : alerts are printed without it", hint="--json writes them for machines")
    keys, memory = _believed(signers, home), IssueMemory(held or profile_file.with_name(f"{profile_file.name}.held"))
    file = _open_file(PROFILE, profile_file, vehicle, keys)
    memory.hold(file)
    network = None
    if model is not None:
        memory.hold(trained := _open_file(MODEL, model, vehicle, keys))
        network = BusNetwork(unpack(trained.content))
    profile, read = _profile_of(file), read_capture(capture)
    rows = _watch(read, BusWatch(vehicle, profile, file.hash, network=network, dbc=_dbc(dbc_file)), show_progress)
    if out or (topic and rows.num_rows):
        to: Destination = {"rate": None, "topic": topic, "out": out, "home": home, "show_progress": show_progress}
        with destination(to) as take:
            take(rows)
    found = rows.to_pylist()
    facts = {"frames": len(read.frames), **output.fields(read, "torn unordered"), "alerts": len(found)}
    worst = sorted(enumerate(found, 1), key=lambda one: -one[1]["strength"])[:SHOWN]
    head = ["number", "time", "identifier", "signal", "check", "seen", "expected", "frames", "strength"]
    lines = output.table([head, *(_cells(*one) for one in sorted(worst))]) if found else ["no alerts"]
    if len(found) > SHOWN:
        lines.append(f"the strongest {SHOWN} of {len(found)} alerts")
    lines.append(", ".join(f"{name} {value}" for name, value in facts.items()))
    if profile.off:
        lines.append(f"off for want of calibration: {', '.join(profile.off)}")
    told = {**facts, "profile": file.hash, "issue": file.issue, "off": profile.off, "rows": _plain_rows(found)}
    tell(
        told, *lines, note=f"next: tally detect explain 1 --alerts {out} --capture {capture} …" if out and found else ""
    )


@command.command("explain")
@click.argument("number", metavar="ALERT", type=click.IntRange(1))
@click.option("--alerts", "file", type=KNOWN_FILE, required=True, help="What tally detect score wrote.")
@click.option("--capture", type=KNOWN_FILE, required=True)
@profile_option
@signers_option
@dbc_option
@click.option("--svg", type=FILE, help="Draw the signal, the band expected and its partners here.")
@home_option
@output.json_option
def explain(
    number: int,
    file: Path,
    capture: Path,
    profile_file: Path,
    signers: tuple[str, ...],
    dbc_file: Path | None,
    svg: Path | None,
    home: Path | None,
    tell: output.Tell,
) -> None:
    """Say in words what the alert of this number is, and draw it.

    \b
    Examples:
      tally detect explain 3 --alerts alerts.parquet --capture friday.log --profile profile.cbor --home car \\
          --dbc car.dbc --svg alert.svg
    """
    from tallystick.cli.detect_picture import draw_svg
    from tallystick.fleet.detect.explain import in_words, panels
    from tallystick.fleet.detect.model import PROFILE
    from tallystick.fleet.detect.readers import read_capture

    rows = _read_alerts(file)
    if number > len(rows):
        raise Misuse(f"{file}: has {output.plural(len(rows), 'alert')}, not {number}")
    row = rows[number - 1]
    signed = _open_file(PROFILE, profile_file, row["vin"], _believed(signers, home))
    if signed.hash.hex() != row["profile"]:
        raise Refused(f"alert {number} was found with another profile, {row['profile'][:16]}…", reason="wrong-profile")
    words = in_words(row)
    drawn = panels(row, read_capture(capture).frames, _profile_of(signed), _dbc(dbc_file))
    if svg is not None:
        when = [round(row[name].timestamp() * 1e6) for name in ("ts_first", "ts_last")]
        output.write_result(svg, draw_svg(words[0], drawn, (when[0], when[1])).encode())
    told = {**_plain_rows([row])[0], "words": words, "partners": [one.name for one in drawn[1:]]}
    beside = f"beside it: {', '.join(told['partners'])}" if told["partners"] else ""
    tell({**told, "svg": svg and str(svg)}, *words, *filter(None, [beside]), note=f"drawn in {svg}" if svg else "")


@command.command("train")
@output.default_option("--seed", type=click.IntRange(0), default=0, help="The same seed gives the same bytes.")
@output.default_option("--minutes", type=click.FloatRange(0.2), default=10.0, help="Of each simulated car.")
@issue_option
@out_option
@key_option
@home_option
@output.json_option
def train(
    seed: int, minutes: float, issue: int | None, out: Path, key: Path | None, home: Path | None, tell: output.Tell
) -> None:
    """Train the network on simulated cars, and sign the model.

    \b
    Examples:
      tally detect train --seed 1 --out model.cbor --key maker.key
    """
    from tallystick.fleet.detect.model import MODEL, pack, sign_file
    from tallystick.fleet.detect.train import simulated
    from tallystick.fleet.detect.train import train as trained

    content = trained(simulated(seed, minutes=minutes), seed)
    made = sign_file(MODEL, pack(content), _signer(key, home), issue=issue or 1, seed=seed)
    output.write_result(out, made.encode())
    facts = {"file": str(out), "issue": made.issue, "seed": seed, "signer": made.signer, "bytes": len(made.encode())}
    told = {**facts, "enabled": content["enabled"], **content["figures"]}
    tell(told, *output.fact_lines(told))


@command.command("evaluate")
@click.option("--data", type=FOLDER, help="A folder that holds one of captures for each car, beside simulated cars.")
@click.option("--quick", is_flag=True, help="Few minutes and few captures.")
@output.json_option
def evaluate(data: Path | None, quick: bool, tell: output.Tell) -> None:
    """Measure the checks by the protocol of docs/detection.md: captures left out in turn, simulated cars.

    \b
    Examples:
      tally detect evaluate --quick
      tally detect evaluate --data ../shared/data --json
    """
    from tallystick.fleet.detect.evaluate import evaluate as evaluated

    told = evaluated(data, quick, output.note)
    lines = [["group", "found", "delay s", "f1 frames", "f1 seconds", "false alarms an hour"]]
    for one in told["groups"]:
        measured = (one["delay_s"], one["frame"]["f1"], one["second"]["f1"], one["false_alarms_per_hour"])
        lines.append([one["group"], f"{one['found']} of {one['tests']}", *map(_shown, measured)])
    after = [
        f"{one['minutes']} min of calibration: {_shown(one['per_hour'])} false alarms an hour"
        for one in told["false_alarms"]
    ]
    tell(told, *output.table(lines), *after)


# --- what several commands do ---


def _signer(key: Path | None, home: Path | None) -> SigningKey:
    """The key to sign with; the public half of a new one lies beside it."""
    from tallystick.crypto.signatures import SigningKey
    from tallystick.identity.folder import Identity
    from tallystick.node.instance import read_secret, write_secret

    if key is None:
        return Identity.load(home).signing_key
    if not key.exists():
        write_secret(key, machine().entropy.bytes(32))
        made = SigningKey.from_seed(read_secret(key))
        output.write_result(_public(key), f"{made.public.raw.hex()}\n".encode())
    return SigningKey.from_seed(read_secret(key))


def _public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def _believed(signers: tuple[str, ...], home: Path | None, key: Path | None = None) -> list[VerifyKey]:
    """The keys whose profiles count: those named, else that of the file to sign with, else the identity's own."""
    from tallystick.crypto.signatures import VerifyKey
    from tallystick.identity.folder import Identity

    if not signers and key is None:
        return list(Identity.load(home).own_keys)
    texts = [Path(one).read_text(encoding="utf-8").strip() if Path(one).is_file() else one for one in signers]
    try:
        named = [VerifyKey(bytes.fromhex(text)) for text in texts]
    except (ValueError, Malformed) as error:
        hint = "64 hex digits, or the .pub file that calibrate wrote beside its key"
        raise Misuse(f"--signed-by: not a key: {error}", hint=hint) from error
    return named or [_signer(key, home).public]


def _open_file(kind: str, file: Path, vehicle: str, keys: list[VerifyKey]) -> DetectionFile:
    from tallystick.fleet.detect.model import BYTES_MAX, open_file

    with file.open("rb") as source:
        return open_file(source.read(BYTES_MAX + 1), kind, vehicle, keys)


def _profile_of(file: DetectionFile) -> Profile:
    from tallystick.fleet.detect.profile import Profile

    return Profile.decode(file.content)


def _read_benign(path: Path) -> Capture:
    from tallystick.fleet.detect.readers import read_capture

    read = read_capture(path)
    if read.attack is not None and read.attack.any():
        raise Misuse(f"{path}: its own labels mark an attack", hint="calibrate on benign drives only")
    return read


def _source(path: Path) -> tuple[str, bytes]:
    from hashlib import file_digest

    with path.open("rb") as file:
        return path.name, file_digest(file, "sha256").digest()


def _dbc(file: Path | None) -> Dbc | None:
    from tallystick.fleet.dbc import Dbc

    return Dbc.parse(file.read_text(encoding="utf-8")) if file else None


def _watch(read: Capture, watch: BusWatch, show_progress: bool) -> pa.RecordBatch:
    """All alerts of a capture."""
    found = []
    with output.progress(f"watching {read.name}", len(read.frames), show=show_progress) as advance:
        for at in range(0, len(read.frames), SLICE_FRAMES):
            found += watch.look(read.frames[at : at + SLICE_FRAMES])
            advance(SLICE_FRAMES)
    return watch.rows(found + watch.open())


def _read_alerts(file: Path) -> list[dict[str, Any]]:
    """The rows of an alerts file, in its order."""
    import pyarrow as pa
    import pyarrow.json
    import pyarrow.parquet as pq

    from tallystick.fleet.schemas import schema

    arrow = schema("alerts").arrow
    try:
        if file.suffix == ".parquet":
            table = pq.read_table(file, columns=arrow.names)
        else:
            parsed = pyarrow.json.ParseOptions(explicit_schema=arrow, unexpected_field_behavior="error")
            table = pyarrow.json.read_json(file, parse_options=parsed)
        rows: list[dict[str, Any]] = table.cast(arrow).to_pylist()
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise Malformed(f"{file}: holds no alerts: {error}") from error
    return rows


def _plain_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "ts_first": row["ts_first"].isoformat(), "ts_last": row["ts_last"].isoformat()} for row in rows]


def _cells(number: int, row: dict[str, Any]) -> list[str]:
    between = f"{_shown(row['low'])} to {_shown(row['high'])}"
    told = [f"{row['ts_first']:%H:%M:%S.%f}", f"{row['can_id'] & 0x1FFF_FFFF:X}", row["signal"], row["check"]]
    return [str(number), *told, _shown(row["seen"]), between, str(row["frames"]), _shown(row["strength"])]


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
