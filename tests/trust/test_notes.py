"""C2SP notes, checkpoints and cosignatures, with public examples as vectors."""

from __future__ import annotations

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Misuse, Refused
from tallystick.trust import notes
from tallystick.trust.notes import Algorithm, Checkpoint, Note, NoteSignature, NoteSigner, NoteVerifier

# The example of the Go package golang.org/x/mod/sumdb/note.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETER_TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
PETER_LINE = (
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
PETER_NOTE = (PETER_TEXT + "\n" + PETER_LINE).encode()

# A public witness's key, and a cosignature with its time, from the tests of transparency-dev/formats.
WITNESS = "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2"
COSIGNATURE = "ZGhGuQAAAABm/qTPeyKXD+R2rzyQsxPiP8mXum7qq/iF0u4vanlqJyocWODBt97w9uL+8qT7S5gxEHWWOworDcFiEBYJXORmnFBOBA=="

# The example of c2sp.org/tlog-cosignature; its keys are not published.
SOFA = """example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==
"""  # noqa: E501

LOG = NoteSigner("tallystick/ab", SigningKey.from_seed(b"\x01" * 32))
COSIGNER = NoteSigner("witness.example/w", SigningKey.from_seed(b"\x02" * 32), Algorithm.COSIGNATURE_V1)
CHECKPOINT = Checkpoint("tallystick/ab", 7, bytes(range(32)), ("height 3", "time 1700000000000"))
SIGNED = Note.sign(CHECKPOINT.encode(), LOG)
COSIGNED = SIGNED.add(COSIGNER.sign(SIGNED.text, 1_700_000_001))


def test_the_go_example_verifies() -> None:
    note = Note.decode(PETER_NOTE)
    verifier = NoteVerifier.decode(PETER)
    assert note.text == PETER_TEXT
    assert note.verify([verifier]) == (notes.Signed(verifier, None),)
    assert note.encode() == PETER_NOTE
    assert verifier.encode() == PETER


def test_every_flipped_byte_of_the_go_example_is_refused() -> None:
    verifier = NoteVerifier.decode(PETER)
    for at in range(len(PETER_NOTE)):
        data = PETER_NOTE[:at] + bytes([PETER_NOTE[at] ^ 1]) + PETER_NOTE[at + 1 :]
        with pytest.raises(Refused):
            Note.decode(data).verify([verifier])


def test_a_public_witness_key_and_cosignature_parse() -> None:
    verifier = NoteVerifier.decode(WITNESS)
    assert (verifier.name, verifier.algorithm) == ("remora.n621.de", Algorithm.COSIGNATURE_V1)
    assert verifier.encode() == WITNESS
    signature = NoteSignature.decode(f"— remora.n621.de {COSIGNATURE}\n")
    assert int.from_bytes(signature.signature[:8], "big") == 1727964367
    assert len(signature.signature) == 72


def test_the_specification_s_checkpoint_parses() -> None:
    note = Note.decode(SOFA.encode())
    checkpoint = Checkpoint.decode(note.text)
    assert (checkpoint.origin, checkpoint.size) == ("example.com/behind-the-sofa", 20852163)
    assert [one.name for one in note.signatures] == ["example.com/behind-the-sofa", "witness.example.com/w1"]
    assert note.encode() == SOFA.encode()
    assert checkpoint.encode() == note.text


def test_a_text_may_have_empty_lines() -> None:
    text = "one\n\n\ntwo\n"
    assert Note.decode(Note.sign(text, LOG).encode()).text == text


def test_a_cosigned_checkpoint_travels() -> None:
    note = Note.decode(COSIGNED.encode())
    assert note == COSIGNED
    assert Checkpoint.decode(note.text) == CHECKPOINT
    signed = note.verify([LOG.verifier, COSIGNER.verifier])
    assert [(one.verifier.name, one.time_s) for one in signed] == [
        ("tallystick/ab", None),
        ("witness.example/w", 1_700_000_001),
    ]


def test_the_cosigned_message_is_the_specification_s() -> None:
    line = COSIGNER.sign(CHECKPOINT.encode(), 1_679_315_147)
    message = "cosignature/v1\ntime 1679315147\n" + CHECKPOINT.encode()
    COSIGNER.key.public.verify_raw(line.signature[8:], message.encode())
    assert line.signature[:8] == (1_679_315_147).to_bytes(8, "big")


def test_a_cosignature_with_another_time_is_forged() -> None:
    line = COSIGNED.signatures[1]
    for signature in (
        (1_700_000_002).to_bytes(8, "big") + line.signature[8:],
        b"\xff" * 8 + line.signature[8:],
        line.signature[:-1],
        line.signature[8:],
    ):
        note = SIGNED.add(NoteSignature(line.name, line.key_id, signature))
        with pytest.raises(Forged):
            note.verify([COSIGNER.verifier])


def test_a_known_key_s_bad_signature_condemns_the_note() -> None:
    other = Note.sign(Checkpoint("tallystick/ab", 8, bytes(32)).encode(), LOG)
    note = Note(SIGNED.text, (other.signatures[0],)).add(COSIGNER.sign(SIGNED.text, 1))
    with pytest.raises(Forged):
        note.verify([LOG.verifier, COSIGNER.verifier])


def test_unknown_keys_are_ignored_and_do_not_suffice() -> None:
    stranger = NoteSigner(LOG.name, SigningKey.from_seed(b"\x03" * 32))  # the same name, another key
    note = Note.sign(SIGNED.text, stranger)
    with pytest.raises(Forged, match="no signature of a known key"):
        note.verify([LOG.verifier])
    assert len(note.add(LOG.sign(SIGNED.text)).verify([LOG.verifier])) == 1
    with pytest.raises(Forged):
        SIGNED.verify([])


def test_a_stolen_key_identifier_is_forged() -> None:
    # 32 bits are easily collided; the key decides.
    stranger = NoteSigner(LOG.name, SigningKey.from_seed(b"\x03" * 32))
    line = stranger.sign(SIGNED.text)
    with pytest.raises(Forged):
        Note(SIGNED.text, (NoteSignature(LOG.name, LOG.verifier.key_id, line.signature),)).verify([LOG.verifier])


def test_a_note_does_not_pass_for_a_cosignature() -> None:
    plain = NoteSigner(COSIGNER.name, COSIGNER.key)
    text = "cosignature/v1\ntime 5\n" + CHECKPOINT.encode()
    with pytest.raises(Misuse, match="must not read as a cosigned message"):
        plain.sign(text)
    # Without that refusal the plain signature over such a text would be a cosignature that was never given.
    stolen = (5).to_bytes(8, "big") + COSIGNER.key.sign_raw(text.encode())
    assert COSIGNER.verifier.verify(CHECKPOINT.encode(), stolen) == 5
    with pytest.raises(Forged):
        Note(SIGNED.text, COSIGNED.signatures[1:]).verify([plain.verifier])


def test_only_checkpoints_are_cosigned() -> None:
    with pytest.raises(Malformed):
        COSIGNER.sign(PETER_TEXT, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\n\n",
        PETER_TEXT.encode(),
        PETER_TEXT.encode() + b"\n",
        PETER_NOTE[:-1],
        PETER_NOTE + b"\n",
        PETER_NOTE + PETER_LINE.encode(),  # one key twice
        PETER_NOTE.replace(b"crypto", b"cry\tto"),
        PETER_NOTE.replace(b"crypto", b"cry\rto"),
        PETER_NOTE.replace(b"crypto", b"cry\xffto"),
        PETER_NOTE.replace("— ".encode(), b"- "),
        PETER_NOTE.replace("— ".encode(), "—  ".encode()),
        PETER_NOTE.replace(b"PeterNeumann ", b"Peter+Neumann "),
        PETER_NOTE.replace(b"PeterNeumann ", "Peter\u2003Neumann ".encode()),
        PETER_NOTE.replace(b"PeterNeumann ", b"P" * 256 + b" "),
        PETER_NOTE.replace(b"PeterNeumann x08go", b"PeterNeumann "),
        PETER_NOTE.replace(b"yyBwJnAM=", b"yyBwJnAN="),  # spare bits set
        PETER_NOTE.replace(b"yyBwJnAM=", b"yyBwJnAM"),
        PETER_NOTE.replace(b"yyBwJnAM=", b"yyBwJnAM= "),
        (PETER_TEXT + "\n— PeterNeumann x08gow==\n").encode(),  # an identifier alone
        (PETER_TEXT + "\n" + "".join(f"— n{number} AAAAAAA=\n" for number in range(65))).encode(),
        (PETER_TEXT + "\n— n " + "A" * 8192 + "\n").encode(),
        ("x" * 8193 + "\n\n" + PETER_LINE).encode(),
        ("x\n" * 131072 + "\n" + PETER_LINE).encode(),
    ],
)
def test_malformed_notes(data: bytes) -> None:
    with pytest.raises(Malformed):
        Note.decode(data)


def test_sixty_four_signatures_are_taken() -> None:
    data = (PETER_TEXT + "\n" + "".join(f"— n{number} AAAAAAA=\n" for number in range(64))).encode()
    note = Note.decode(data)
    assert len(note.signatures) == 64
    with pytest.raises(Misuse, match="more than 64"):
        note.add(LOG.sign(note.text))


ROOT64 = base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "origin\n",
        "origin\n1\n",
        f"origin\n1\n{ROOT64}",
        f"\n1\n{ROOT64}\n",
        f"origin\n01\n{ROOT64}\n",
        f"origin\n+1\n{ROOT64}\n",
        f"origin\n-1\n{ROOT64}\n",
        f"origin\n 1\n{ROOT64}\n",
        f"origin\n1_0\n{ROOT64}\n",
        f"origin\n١\n{ROOT64}\n",
        f"origin\n{2**63}\n{ROOT64}\n",
        f"origin\n{'9' * 5000}\n{ROOT64}\n",
        f"origin\n1\n{ROOT64[:-4]}\n",
        f"origin\n1\n{ROOT64[:-2]}B=\n",
        "origin\n1\nAAAA\n",
        f"origin\n1\n{ROOT64}\n\n",
        f"origin\n1\n{ROOT64}\n\nheight 1\n",
        f"origin\n1\n{ROOT64}\nheight\t1\n",
        f"origin\n1\n{ROOT64}\n" + "x\n" * 33,
    ],
)
def test_malformed_checkpoints(text: str) -> None:
    with pytest.raises(Malformed):
        Checkpoint.decode(text)


def test_the_empty_tree_and_the_largest() -> None:
    for size in (0, 2**63 - 1):
        checkpoint = Checkpoint("origin", size, bytes(32))
        assert Checkpoint.decode(checkpoint.encode()) == checkpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "PeterNeumann",
        "PeterNeumann+c74f20a3",
        PETER.replace("c74f20a3", "c74f20a4"),
        PETER.replace("c74f20a3", "C74F20A3"),
        PETER.replace("PeterNeumann", "PeterNeuman"),
        PETER.replace("PeterNeumann", "Peter Neumann"),
        PETER.replace("+AR", "+AS"),
        PETER + "=",
        PETER[:-4],
        "rekor.sigstore.dev+12345678+AwEB",
        "rekor.sigstore.dev+12345678+THIS_IS_NOT_BASE64!",
        "x+00000000+" + "A" * 9000,
        "\ud800+00000000+AAAA",
    ],
)
def test_malformed_verifier_keys(text: str) -> None:
    with pytest.raises(Malformed):
        NoteVerifier.decode(text)


def test_misuse_is_named() -> None:
    for call in (
        lambda: Checkpoint("", 0, bytes(32)),
        lambda: Checkpoint("a\nb", 0, bytes(32)),
        lambda: Checkpoint("\ud800", 0, bytes(32)),
        lambda: Checkpoint("a", -1, bytes(32)),
        lambda: Checkpoint("a", 0, bytes(31)),
        lambda: Checkpoint("a", 0, bytes(32), ("",)),
        lambda: NoteVerifier("a b", LOG.key.public),
        lambda: LOG.sign("no newline"),
        lambda: LOG.sign("text\n", 5),
        lambda: COSIGNER.sign(CHECKPOINT.encode()),
        lambda: COSIGNER.sign(CHECKPOINT.encode(), -1),
        lambda: SIGNED.add(SIGNED.signatures[0]),
        lambda: Note("text\n", ()).encode(),
    ):
        with pytest.raises(Misuse):
            call()


@given(st.binary(max_size=120))
def test_junk_raises_only_ours(data: bytes) -> None:
    for decode in (
        lambda: Note.decode(data),
        lambda: Note.decode(PETER_NOTE[:60] + data + PETER_NOTE[60:]),
        lambda: Checkpoint.decode(data.decode("utf-8", "surrogateescape")),
        lambda: NoteVerifier.decode(data.decode("utf-8", "surrogateescape")),
        lambda: notes.decode_signatures(data.decode("utf-8", "surrogateescape")),
    ):
        with suppress(Malformed):
            decode()
