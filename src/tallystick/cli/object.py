"""`tally object`: large objects, sealed into two plain files that anybody may serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import common, output
from tallystick.errors import Malformed, Misuse, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tallystick.objects.layout import Docket, ObjectReference
    from tallystick.objects.sources import Source

_FORMAT = "tallystick object reference 1"

places_option = click.option(
    "--from",
    "places",
    multiple=True,
    metavar="PLACE",
    help="A folder of objects or a web server's URL; may be given several times. By default the identity's own folder.",
)
insecure_option = click.option("--insecure", is_flag=True, help="Take plain http off loopback.")


@click.group("object")
def command() -> None:
    """Seal files that are too large for a record, serve them, and read them from places that nobody needs to trust.

    An object is two plain files, slips and chunks, named by a hash. Its reference holds the key: keep it as you would
    the file, or publish it on a topic, whose locks then say who may read the object.

    \b
    Examples:
      tally object put crash.mp4 -o crash.reference
      tally object serve car/objects --port 7430
      tally object get crash.reference --from http://127.0.0.1:7430 -o crash.mp4
    """


@command.command("put")
@click.argument("file", type=common.KNOWN_FILE)
@click.option("-o", "--output", "reference_file", type=common.FILE, callback=common.not_written_yet, required=True)
@click.option("--into", type=common.FOLDER, help="The folder of objects, if not the identity's own.")
@output.default_option("--cut", type=click.Choice(["content", "fixed"]), default="content", help="Where chunks end.")
@output.default_option("--chunk-bytes", type=int, default=65536, help="Of a chunk on average: a power of two.")
@output.default_option("--level", type=click.IntRange(0, 19), default=3, help="Of zstd; 0 compresses nothing.")
@common.home_option
@output.json_option
def put(
    file: Path,
    reference_file: Path,
    into: Path | None,
    cut: str,
    chunk_bytes: int,
    level: int,
    home: Path | None,
    tell: output.Tell,
) -> None:
    """Seal FILE and write its reference, with the key, to another file that only you can read.

    Files that others have a version of are cut by content: what both versions share makes the same chunks.

    \b
    Examples:
      tally object put crash.mp4 -o crash.reference
      tally object put image.bin -o image.reference --into served --level 19
    """
    from tallystick.client.objects import Objects
    from tallystick.identity.folder import Identity
    from tallystick.node.instance import write_secret
    from tallystick.objects.layout import FIXED, GEAR
    from tallystick.objects.store import Wish

    objects = Objects(Identity.load(home), *common.machine())
    wish = Wish(GEAR if cut == "content" else FIXED, chunk_bytes, level)
    docket, reference = objects.put_with_docket(file, wish, into=into)
    held = {"format": _FORMAT, "root": reference.name, "key": reference.key.hex(), "length": reference.length}
    write_secret(reference_file, (json.dumps({**held, "docket": docket.encode().hex()}) + "\n").encode())
    told = {"root": reference.name, "length": reference.length, "sealed": docket.sealed_length, "chunks": docket.count}
    tell(told, *output.fact_lines(told), note=f"next: tally object serve {into or objects.folder}")


@command.command("get")
@click.argument("reference_file", metavar="REFERENCE", type=common.KNOWN_FILE)
@places_option
@insecure_option
@output.progress_option
@common.output_option("The file to write; until all of it was verified it is FILE.part.")
@common.home_option
@output.json_option
def get(
    reference_file: Path,
    places: tuple[str, ...],
    insecure: bool,
    show_progress: bool,
    file: Path,
    home: Path | None,
    tell: output.Tell,
) -> None:
    """Fetch the object of a REFERENCE that tally object put wrote from all places at once, verify and open it.

    Whoever sends something else than the object is named and asked no more; the others go on. What came of an attempt
    that ended early lies in FILE.part, and another goes on from there.

    \b
    Examples:
      tally object get crash.reference --from https://clips.example/fleet --from stick -o crash.mp4
    """
    from contextlib import ExitStack

    from tallystick.objects.fetching import Fetching, PlainKeeper
    from tallystick.objects.layout import ObjectKey, slips_file
    from tallystick.objects.outcomes import ServerNamed
    from tallystick.runtime.disk import RealDisk

    reference, docket = read_reference(reference_file), read_docket(reference_file)
    faults = list[str]()

    def on_fault(told: str) -> None:
        faults.append(told)
        output.note(told)

    def on_named(named: ServerNamed) -> None:
        on_fault(f"{named.server}: {named.what}")

    with ExitStack() as opened:
        sources = _sources(places, home, insecure)
        for source in sources:
            opened.callback(source.close)
        there = _that_answer(sources, slips_file(docket.root), on_fault)
        advance = opened.enter_context(output.progress("fetching", reference.length, show=show_progress))
        keeper = PlainKeeper(RealDisk(file.parent), file.name, ObjectKey(reference.key), advance)
        opened.callback(keeper.close)
        try:
            statistics = Fetching(docket, there, keeper, common.machine()[0], on_named=on_named).run()
        except Unavailable as error:
            if len(faults) < len(sources):
                raise
            raise Refused(f"{faults[-1]}, and nobody else has it", hint="name another place that has it") from error
    told = {"root": reference.name, "length": reference.length, "file": str(file)}
    tell({**told, "fetched": statistics.bytes_arrived, "faults": faults}, *output.fact_lines(told))


@command.command("check")
@click.argument("names", metavar="REFERENCE|ROOT...", nargs=-1, required=True)
@places_option
@insecure_option
@common.home_option
@output.json_option
def check(names: tuple[str, ...], places: tuple[str, ...], insecure: bool, home: Path | None, tell: output.Tell) -> int:
    """Read objects whole at every place and say which chunks are not what they should be.

    A root is enough to find rot; with a reference what is inside is compared as well. The exit code is 3 if anything
    was found.

    \b
    Examples:
      tally object check image.reference --from served --from https://images.example/fleet
    """
    from tallystick.objects.layout import ObjectKey
    from tallystick.objects.reading import find_faults

    found = []
    for name in names:
        reference = read_reference(Path(name)) if Path(name).is_file() else None
        root = reference.root if reference else read_root(name)
        key = ObjectKey(reference.key) if reference else None
        for source in _sources(places, home, insecure):
            faults = [str(error) for error in find_faults(source, root, key)]
            source.close()
            found.append({"root": root.hex(), "place": source.name, "faults": faults})
    lines = [f"{one['root']}  {one['place']}  {'; '.join(one['faults']) or 'whole'}" for one in found]
    tell(found, *lines)
    return output.EXIT_CODES[Refused] if any(one["faults"] for one in found) else 0


@command.command("serve")
@common.folder_argument
@output.default_option("--host", default="127.0.0.1")
@output.default_option("--port", type=common.PORT, default=7430, help="0: any.")
@click.option("--tls-certificate", default="", help="PEM file; off loopback it is needed.")
@click.option("--tls-key", default="", help="PEM file.")
@click.option("--json-logs", is_flag=True, help="Write logs as JSON lines.")
@output.json_option
def serve(
    folder: Path, host: str, port: int, tls_certificate: str, tls_key: str, json_logs: bool, tell: output.Tell
) -> None:
    """Serve the objects in DIR, whole and by byte ranges, until SIGINT or SIGTERM. It needs no identity and no key.

    Any web server that knows byte ranges does as well: point it at DIR.

    \b
    Examples:
      tally object serve car/objects --port 7430
    """
    from tallystick.objects.web import object_server
    from tallystick.runtime.address import server_tls
    from tallystick.runtime.disk import RealDisk
    from tallystick.runtime.logs import configure_logs
    from tallystick.runtime.server import Server

    if not folder.is_dir():
        raise Misuse(f"{folder}: no folder is here", hint="tally object put makes one")
    configure_logs(json=json_logs, level="info" if json_logs else "warning")
    tls = server_tls(tls_certificate, tls_key) if tls_certificate else None
    server = Server(object_server(RealDisk(folder)), host, port, tls=tls)
    tell({"url": server.url}, f"objects  {server.url}")
    common.on_signal(lambda: None)  # the server takes them while it serves
    server.run()


def read_reference(file: Path) -> ObjectReference:
    """Raises `Malformed`."""
    from tallystick.objects.layout import ObjectReference

    root, key, length, _ = _held(file)
    return ObjectReference(root, key, length)


def read_docket(file: Path) -> Docket:
    """The docket of the same object. Raises `Malformed`, also where it is another's."""
    from tallystick.objects.layout import Docket

    root, _, length, encoded = _held(file)
    docket = Docket.decode(encoded)
    if (docket.root, docket.plain_length) != (root, length):
        raise Malformed(f"{file}: the docket is another object's", hint="tally object put writes one")
    return docket


def _held(file: Path) -> tuple[bytes, bytes, int, bytes]:
    try:
        held = json.loads(file.read_text("utf-8"))
        if held["format"] == _FORMAT:
            root, key, docket = (bytes.fromhex(held[name]) for name in ("root", "key", "docket"))
            return root, key, int(held["length"]), docket
    except (ValueError, KeyError, TypeError):
        pass
    raise Malformed(f"{file}: not the reference of an object", hint="tally object put writes one")


def read_root(name: str) -> bytes:
    """The root that a name means. Raises `Malformed`."""
    try:
        root = bytes.fromhex(name)
    except ValueError:
        root = b""
    if len(root) != 32 or root.hex() != name:
        raise Malformed(f'object "{name}": expected 64 hexadecimal digits')
    return root


def _sources(places: tuple[str, ...], home: Path | None, insecure: bool) -> list[Source]:
    from tallystick.client.objects import source_of

    if not places:
        from tallystick.identity.folder import Identity

        places = (str(Identity.load(home).home / "objects"),)
    return [source_of(place, *common.machine(), insecure=insecure) for place in places]


def _that_answer(sources: list[Source], file: str, on_fault: Callable[[str], None]) -> dict[str, Source]:
    """The sources that have a file, all of them asked at once. Raises what one says where none has it, the world's
    faults before others, so that a mistaken place is told at once."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(source: Source) -> Refused | Unavailable | None:
        try:
            source.read(file, 0, 1)
        except (Refused, Unavailable) as error:
            return error
        return None

    with ThreadPoolExecutor(len(sources)) as pool:
        errors = dict(zip(sources, pool.map(ask, sources), strict=True))
    there = {source.name: source for source, error in errors.items() if error is None}
    faults = [error for error in errors.values() if error is not None]
    if not there:
        raise next((error for error in faults if isinstance(error, Unavailable)), faults[0])
    for error in faults:
        on_fault(str(error))
    return there
