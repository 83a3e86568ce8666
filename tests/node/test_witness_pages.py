"""What strangers see of a witness: the newest checkpoints that it cosigned, as a page and as notes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from ledger_world import NOW_MS, World, operation_batch, seed, token
from server_thread import ServerThread

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger.block import read_head
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.witness import KEPT_BYTES_MAX, KEPT_MAX, Cosigned, Witness, bounded, encode_request
from tallystick.node.witness_pages import ASKING, WitnessPages, newest, show
from tallystick.page.html import style
from tallystick.runtime.disk import write_atomic
from tallystick.runtime.router import Router
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import SystemClock
from tallystick.trust.notes import Algorithm, Checkpoint, Note, NoteSigner, ledger_verifiers

WORLD = World()
SIGNER = NoteSigner("witness.example", SigningKey.from_seed(seed("witness")), Algorithm.COSIGNATURE_V1)
NOW_S = NOW_MS // 1000
KEPT = 4


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    WORLD.node.number = 0
    opened = SqliteLedger(str(tmp_path / "ledger"), WORLD.trust, WORLD.ledger_key, NOW_MS)
    for transaction in WORLD.founding():
        opened.submit(transaction.data, NOW_MS)
    opened.flush(NOW_MS)
    yield opened
    opened.close()


def new_witness(disk: SeededDisk) -> Witness:
    return Witness(SIGNER, {WORLD.trust.origin: ledger_verifiers(WORLD.trust)}, disk, KEPT)


def grow(ledger: SqliteLedger) -> None:
    ledger.submit(WORLD.node.sign(*operation_batch(WORLD, 1, [token("heart")], [WORLD.monitor.id])).data, NOW_MS)
    ledger.flush(NOW_MS)


def cosign(witness: Witness, ledger: SqliteLedger, old: int, note: bytes = b"", now_s: int = NOW_S) -> int:
    """The size that was cosigned."""
    note = note or ledger.checkpoint()
    size = read_head(note, WORLD.trust).size
    proof = ledger.consistency(old, size) if 0 < old < size else []
    assert witness.add_checkpoint(encode_request(old, proof, note), now_s).status == 200
    return size


def asked(url: str) -> tuple[str, dict[str, str]]:
    with urlopen(url, timeout=60) as answer:
        return answer.read().decode(), {name.lower(): value for name, value in answer.headers.items()}


def pages(witness: Witness) -> ServerThread:
    router = Router()
    WitnessPages(witness, SystemClock()).add_routes(router)
    return ServerThread(router)


def test_both_forms_show_what_was_cosigned(ledger: SqliteLedger) -> None:
    witness = new_witness(SeededDisk(1))
    with pages(witness) as server:
        assert "cosigned nothing yet" in asked(server.url)[0]
        sizes = [cosign(witness, ledger, 0)]
        grow(ledger)
        sizes.append(cosign(witness, ledger, sizes[0], now_s=NOW_S + 1))
        text, headers = asked(f"{server.url}/checkpoints")
        assert headers["content-type"] == "text/plain; charset=utf-8"
        parts = text.split("\n\n")
        notes = [
            Note.decode(f"{one}\n\n{two.rstrip()}\n".encode()) for one, two in zip(parts[::2], parts[1::2], strict=True)
        ]
        assert [Checkpoint.decode(one.text).size for one in notes] == sizes[::-1]
        for note in notes:
            note.verify([SIGNER.verifier])  # by the witness's key alone
            note.verify(ledger_verifiers(WORLD.trust))
        page, _ = asked(f"{server.url}/")
        for note in notes:
            assert Checkpoint.decode(note.text).root.hex() in page
        assert SIGNER.verifier.encode() in page


def test_the_page_can_run_and_load_nothing(ledger: SqliteLedger) -> None:
    witness = new_witness(SeededDisk(1))
    cosign(witness, ledger, 0)
    with pages(witness) as server:
        page, headers = asked(server.url)
    policy = headers["content-security-policy"]
    digest = b64encode(sha256(style().encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ")
    assert "unsafe" not in policy
    assert "style=" not in page
    assert "<script" not in page


def test_hostile_names_are_text() -> None:
    origin = "<script>alert(1)</script>"
    checkpoint = Checkpoint(origin, 1, bytes(32), ("<b>",))
    shown = show(SIGNER.verifier.encode(), [Cosigned(checkpoint, None, NOW_S, checkpoint.encode().encode())])
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "&lt;script&gt;" in shown


def test_nobody_but_the_ledger_pushes_out_what_is_kept(ledger: SqliteLedger) -> None:
    disk = SeededDisk(1)
    witness = new_witness(disk)
    size = cosign(witness, ledger, 0)
    mallory = NoteSigner("mallory", SigningKey.from_seed(seed("mallory")))
    for _ in range(2 * KEPT):
        again = Note.decode(ledger.checkpoint())
        cosign(witness, ledger, size, again.add(mallory.sign(again.text)).encode())
    [kept] = witness.cosigned()
    assert b"mallory" not in kept.note
    for _ in range(KEPT + 2):
        grow(ledger)
        size = cosign(witness, ledger, size)
    assert [one.checkpoint.size for one in witness.cosigned()] == [size - number for number in range(KEPT)]
    assert new_witness(disk).cosigned() == witness.cosigned()  # after a restart


def test_a_stranger_s_signature_is_not_shown(ledger: SqliteLedger) -> None:
    witness, note = new_witness(SeededDisk(1)), Note.decode(ledger.checkpoint())
    mallory = NoteSigner("mallory", SigningKey.from_seed(seed("mallory")))
    cosign(witness, ledger, 0, note.add(mallory.sign(note.text)).encode())
    [kept] = witness.cosigned()
    assert [one.name for one in Note.decode(kept.note).signatures] == [WORLD.trust.origin, SIGNER.name]


def test_what_is_kept_and_shown_is_bounded_in_bytes() -> None:
    large = bytes(KEPT_BYTES_MAX // 2)
    assert len(bounded([(3, large), (2, large), (1, b"")], KEPT)) == 3
    assert len(bounded([(3, large), (2, large + b"x"), (1, b"")], KEPT)) == 1
    assert len(bounded([(3, 3 * large), (2, b"")], KEPT)) == 1
    one = Cosigned(Checkpoint("origin", 1, bytes(32)), None, NOW_S, bytes(100))
    assert len(newest([one] * 9, bytes_max=300)) == 3


def test_a_year_of_checkpoints_is_thinned_out() -> None:
    kept: tuple[tuple[int, bytes], ...] = ()
    for day in range(366):
        for second in range(0, 60, 2):
            kept = bounded(((day * 86_400 + second, b"note"), *kept), KEPT_MAX)
    assert len(kept) < KEPT_MAX
    assert kept[-1][0] == 0  # the first
    times = [time_s for time_s, _ in kept]
    assert times[:16] == list(range(times[0], times[0] - 32, -2))
    ages = [times[0] - one for one in times[16:]]
    assert all(older <= 3 * newer + 2 * 86_400 for newer, older in pairwise(ages))


def test_the_memory_of_a_witness_of_before_is_read(ledger: SqliteLedger) -> None:
    disk = SeededDisk(1)
    witness = new_witness(disk)
    size = cosign(witness, ledger, 0)
    head, text = read_head(ledger.checkpoint(), WORLD.trust), Note.decode(ledger.checkpoint()).text
    [name] = [name for name in disk.listdir("") if name.startswith("origin-")]
    earlier = wire.encode([1, WORLD.trust.origin, head.size, Checkpoint.decode(text).root, head.height, text])
    write_atomic(disk, name, earlier)
    again = new_witness(disk)
    assert again.cosigned() == []
    assert cosign(again, ledger, size) == size  # the same once more is now shown
    assert len(again.cosigned()) == 1


def test_an_address_that_asks_too_often_is_told_to_wait(ledger: SqliteLedger) -> None:
    witness = new_witness(SeededDisk(1))
    with pages(witness) as server:
        statuses = []
        for _ in range(int(ASKING.most) + 20):
            try:
                asked(server.url)
            except HTTPError as error:
                with error:
                    statuses.append(error.code)
        assert statuses
        assert set(statuses) == {429}
