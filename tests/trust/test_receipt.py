"""Checkpoints under a trust file, and the way from a parcel to one: every link is needed, and says what is wrong."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from makers import INSTANCE, seed, token
from provers import (
    HEIGHT,
    LEDGER,
    NODE,
    NODE_ID,
    STATE_ROOT,
    TIME_MS,
    WITNESSES,
    Anchorage,
    sign_note,
    trust_file,
)

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed
from tallystick.trust.notes import Note, NoteSigner, ledger_verifiers, verify_checkpoint
from tallystick.trust.promise import Anchor
from tallystick.trust.receipt import AnchoredBefore, EntryProof, ProvenEntry, Receipt, stands_below

ORIGIN = f"tallystick/{INSTANCE.hex()}"
TREE_ROOT = seed("root of the tree")
STATE_LINE = f"state {base64.b64encode(STATE_ROOT).decode()}"
PARCELS = [seed(f"parcel {i}") for i in range(11)]


# --- checkpoints ---


def test_a_checkpoint_is_accepted_and_says_who_vouches() -> None:
    note = sign_note(ORIGIN, 5, TREE_ROOT)
    accepted = verify_checkpoint(note, trust_file())
    assert (accepted.size, accepted.root, accepted.height, accepted.time_ms) == (5, TREE_ROOT, HEIGHT, TIME_MS)
    assert (accepted.origin, accepted.state_root, accepted.note) == (ORIGIN, STATE_ROOT, note)
    assert accepted.cosigners == ()
    assert "operator alone" in accepted.vouched_by(trust_file())


def test_a_checkpoint_says_what_it_shows_and_what_not() -> None:
    trust = trust_file(ledger=4, ledger_threshold=3)
    accepted = verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, ledger=LEDGER), trust)
    stated, vouched = accepted.statements(trust)
    for part in (f"height {HEIGHT}", f"{TIME_MS} ms", "5 transactions", TREE_ROOT.hex(), STATE_ROOT.hex()):
        assert part in stated
    assert vouched == accepted.vouched_by(trust)
    newest, continues, roots, shown = accepted.not_proven(trust)
    assert newest.startswith("that it is the newest")
    assert "consistency" in continues
    assert "only their roots" in roots
    assert shown.startswith("that the validators showed everybody the same history")


def test_cosigners_are_named_also_beyond_the_quorum() -> None:
    trust = trust_file(witnesses=3, quorum=1)
    accepted = verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, cosigners=2), trust)
    assert accepted.cosigners == ("witness-0.example", "witness-1.example")
    assert "operator alone" not in accepted.vouched_by(trust)
    assert "witness-1.example" in accepted.vouched_by(trust)


def test_validators_that_signed_are_named_with_the_quorum() -> None:
    trust = trust_file(ledger=4, ledger_threshold=3)
    accepted = verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, ledger=LEDGER[1:]), trust)
    signed = [one.key_id.hex() for one in ledger_verifiers(trust)[1:]]
    assert list(accepted.validators(trust)) == signed
    assert accepted.vouched_by(trust) == f"3 of 4 validators signed this history, 3 must: {', '.join(signed)}"
    both = trust_file(ledger=4, ledger_threshold=3, witnesses=1, quorum=1)
    cosigned = verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, ledger=LEDGER, cosigners=1), both).vouched_by(both)
    assert cosigned.startswith("4 of 4 validators signed this history, 3 must: ")
    assert cosigned.endswith("; witnesses cosigned this history: witness-0.example")


def test_under_an_older_trust_file_the_hint_says_where_the_newer_one_is() -> None:
    for older in (trust_file(), trust_file(ledger=3, ledger_threshold=2)):
        with pytest.raises(Forged) as caught:
            verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, ledger=LEDGER[2:]), older)
        assert "HOME/trust.json" in (caught.value.hint or "")


def test_too_few_witnesses_or_ledger_keys_are_refused() -> None:
    with pytest.raises(Forged) as caught:
        verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, cosigners=1), trust_file(witnesses=3, quorum=2))
    assert caught.value.reason == "no-quorum"
    trust = trust_file(ledger=3, ledger_threshold=2)
    assert verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, ledger=LEDGER[1:]), trust).size == 5
    with pytest.raises(Forged):
        verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, ledger=LEDGER[:1]), trust)
    with pytest.raises(Forged):  # the witnesses alone are no ledger
        verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, ledger=[], cosigners=3), trust_file(witnesses=3, quorum=1))


def test_strangers_and_strange_kinds_of_signature_do_not_count() -> None:
    stranger = SigningKey.from_seed(seed("stranger"))
    with pytest.raises(Forged):
        verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, ledger=[stranger]), trust_file())
    # A witness that signs plainly, instead of cosigning with a time, is not counted as a cosigner.
    note = Note.decode(sign_note(ORIGIN, 5, TREE_ROOT))
    plain = note.add(NoteSigner(WITNESSES[0].name, WITNESSES[0].key).sign(note.text)).encode()
    assert verify_checkpoint(plain, trust_file(witnesses=1)).cosigners == ()
    with pytest.raises(Forged):
        verify_checkpoint(plain, trust_file(witnesses=1, quorum=1))


def test_one_bad_signature_of_a_known_key_condemns_the_note() -> None:
    note = Note.decode(sign_note(ORIGIN, 5, TREE_ROOT, cosigners=2))
    bad = replace(note.signatures[2], signature=bytes(72))
    with pytest.raises(Forged):
        verify_checkpoint(Note(note.text, (*note.signatures[:2], bad)).encode(), trust_file(witnesses=2, quorum=1))


def test_another_instance_is_refused_by_name() -> None:
    with pytest.raises(Forged) as caught:
        verify_checkpoint(sign_note(f"tallystick/{bytes(32).hex()}", 5, TREE_ROOT), trust_file())
    assert caught.value.reason == "wrong-instance"


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("height 1", "time 2"),
        ("height 1", "time 2", STATE_LINE, "more 1"),
        ("time 2", "height 1", STATE_LINE),
        ("height 01", "time 2", STATE_LINE),
        ("height -1", "time 2", STATE_LINE),
        ("height 1 ", "time 2", STATE_LINE),
        ("height 1", "time 9223372036854775808", STATE_LINE),
        ("height ١", "time 2", STATE_LINE),  # a digit to int(), not to us
        ("height 1", "time 2", STATE_LINE[:-1]),
        ("height 1", "time 2", "state " + base64.b64encode(bytes(31)).decode()),
        ("height 1", "time 2", STATE_LINE + " "),
        ("height 1", "time 2", "state é"),
    ],
)
def test_extension_lines_have_one_form(lines: tuple[str, ...]) -> None:
    with pytest.raises(Malformed):
        verify_checkpoint(sign_note(ORIGIN, 5, TREE_ROOT, extensions=lines), trust_file())


# --- receipts ---


@pytest.fixture
def anchorage() -> Anchorage:
    return Anchorage(trust_file(witnesses=2, quorum=1), PARCELS, cosigners=2)


def test_a_receipt_shows_where_and_by_when(anchorage: Anchorage) -> None:
    for offset in (0, 4, 10):
        receipt = Receipt.decode(anchorage.receipt(offset).encode())
        anchored = receipt.verify(PARCELS[offset], token("brakes"), anchorage.trust)
        assert (anchored.partition, anchored.offset, anchored.height) == (3, offset, HEIGHT)
        assert (anchored.time_ms, anchored.node) == (TIME_MS, NODE_ID)
        assert anchored.cosigners == ("witness-0.example", "witness-1.example")
        assert f"at or before height {HEIGHT}" in anchored.describe()


def test_without_witnesses_the_receipt_says_so() -> None:
    anchorage = Anchorage(trust_file(), PARCELS)
    anchored = anchorage.receipt(4).verify(PARCELS[4], token("brakes"), anchorage.trust)
    assert "operator alone" in anchored.describe()
    assert anchored.not_proven[-1].startswith("that the operator showed everybody the same history")


def test_a_receipt_says_what_it_shows_and_what_not(anchorage: Anchorage) -> None:
    """Whoever expects no topic is told which one it is."""
    anchored = anchorage.receipt(4).verify(PARCELS[4], None, anchorage.trust)
    assert anchored == anchorage.receipt(4).verify(PARCELS[4], token("brakes"), anchorage.trust)
    [stated] = anchored.statements
    assert stated == f"parcel {PARCELS[4].hex()} of topic {token('brakes').hex()} lies in {anchored.describe()}"
    told = "\n".join(anchored.not_proven)
    for gap in ("when exactly", f"node {NODE_ID.hex()} carried the partition", "who sealed the parcel"):
        assert gap in told
    assert "same history" not in told


def test_every_link_is_held_to_the_next(anchorage: Anchorage) -> None:
    good = anchorage.receipt(4)
    anchor = Anchor.decode_entry(good.anchor.entry)
    other = anchorage.entry_proof(replace(anchor, root=seed("another root")).encode_entry())
    head = wire.decode(good.anchor.head)
    bad = [
        replace(good, offset=5),
        replace(good, offset=11),
        replace(good, path=good.path[1:]),
        replace(good, path=(*good.path, bytes(32))),
        replace(good, anchor=other),
        replace(good, anchor=replace(good.anchor, entry=other.entry)),
        replace(good, anchor=replace(good.anchor, index=1)),
        replace(good, anchor=replace(good.anchor, entry_path=())),
        replace(good, anchor=replace(good.anchor, signature=bytes(64))),
        replace(good, anchor=replace(good.anchor, number=4)),
        replace(good, anchor=replace(good.anchor, number=1 << 60)),
        replace(good, anchor=replace(good.anchor, path=())),
        replace(good, anchor=replace(good.anchor, head=wire.encode([*head[:5], 4]))),
        replace(good, anchor=replace(good.anchor, note=sign_note(ORIGIN, 7, TREE_ROOT, cosigners=2))),
    ]
    for receipt in bad:
        with pytest.raises(Forged):
            Receipt.decode(receipt.encode()).verify(PARCELS[4], token("brakes"), anchorage.trust)


def test_a_receipt_is_of_one_parcel_topic_and_instance(anchorage: Anchorage) -> None:
    receipt = anchorage.receipt(4)
    with pytest.raises(Forged):
        receipt.verify(PARCELS[5], token("brakes"), anchorage.trust)
    with pytest.raises(Forged) as caught:
        receipt.verify(PARCELS[4], token("tyres"), anchorage.trust)
    assert caught.value.reason == "wrong-topic"
    elsewhere = replace(anchorage, instance=bytes(32)).receipt(4)
    with pytest.raises(Forged) as caught:
        elsewhere.verify(PARCELS[4], token("brakes"), anchorage.trust)
    assert caught.value.reason == "wrong-instance"


def test_an_entry_of_another_kind_is_no_anchor(anchorage: Anchorage) -> None:
    anchor = Anchor.decode_entry(anchorage.receipt(4).anchor.entry)
    retire = wire.encode([41, anchor.token, anchor.partition, anchor.size, anchor.root])  # the same fields
    proof = anchorage.entry_proof(retire)
    assert EntryProof.decode(proof.encode()).verify(anchorage.trust).author == NODE_ID
    with pytest.raises(Malformed):
        replace(anchorage.receipt(4), anchor=proof).verify(PARCELS[4], token("brakes"), anchorage.trust)


# --- an anchor before a revocation ---

THIEF = seed("thief")[:16]
SMALL = merkle.Tree([merkle.leaf_hash(parcel) for parcel in PARCELS[:6]])
LARGE = merkle.Tree([merkle.leaf_hash(parcel) for parcel in PARCELS])
LATER = (LARGE.size, LARGE.root())


def placed(anchorage: Anchorage, entry: bytes, number: int, index: int) -> ProvenEntry:
    """An entry as if it had been proved in this place of the ledger."""
    proven = anchorage.entry_proof(entry).verify(anchorage.trust)
    return replace(proven, proof=replace(proven.proof, number=number, index=index))


def revoked(anchorage: Anchorage, number: int = 7, index: int = 1, subject: bytes = THIEF) -> ProvenEntry:
    return placed(anchorage, wire.encode([2, subject, b""]), number, index)


def older(anchorage: Anchorage, number: int = 7, index: int = 0, partition: int = 3) -> ProvenEntry:
    return placed(anchorage, Anchor(token("brakes"), partition, 6, SMALL.root()).encode_entry(), number, index)


@pytest.mark.parametrize("place", [(6, 9), (7, 0)])
def test_what_an_anchor_before_the_revocation_covers_stands(anchorage: Anchorage, place: tuple[int, int]) -> None:
    path, proved = LARGE.consistency(6, LARGE.size), (revoked(anchorage), older(anchorage, *place))
    assert stands_below(THIEF, (token("brakes"), 3), *proved, LATER, path) == 6
    shown = AnchoredBefore(proved[0].proof, proved[1].proof, tuple(path))
    assert AnchoredBefore.decode(shown.encode()) == shown


def test_every_link_between_anchor_and_revocation_is_needed(anchorage: Anchorage) -> None:
    place, path = (token("brakes"), 3), LARGE.consistency(6, LARGE.size)
    after = [(revoked(anchorage), older(anchorage, *at)) for at in ((7, 1), (7, 2), (8, 0))]
    another = (revoked(anchorage, subject=seed("another")[:16]), older(anchorage))
    elsewhere = (revoked(anchorage), older(anchorage, partition=2))
    none = (older(anchorage), older(anchorage))
    for proved in (*after, another, elsewhere, none):
        with pytest.raises(Forged):
            stands_below(THIEF, place, *proved, LATER, path)
    with pytest.raises(Malformed):
        stands_below(THIEF, place, revoked(anchorage), revoked(anchorage, number=6), LATER, path)
    proved = (revoked(anchorage), older(anchorage))
    for later, shown in (((LARGE.size, seed("another tree")), path), (LATER, path[1:]), ((5, SMALL.root(5)), [])):
        with pytest.raises(Forged):
            stands_below(THIEF, place, *proved, later, shown)


def test_the_author_of_an_entry_can_be_held_to_it(anchorage: Anchorage) -> None:
    proven = anchorage.receipt(0).anchor.verify(anchorage.trust)
    proven.check_author(NODE.public)
    with pytest.raises(Forged):
        proven.check_author(LEDGER[0].public)


def test_a_partition_s_inner_node_is_no_parcel(anchorage: Anchorage) -> None:
    """Leaves and nodes are hashed apart (RFC 6962): nobody passes an inner node off as a parcel one level up."""
    good = anchorage.receipt(0)
    leaves = [merkle.leaf_hash(parcel) for parcel in PARCELS[:2]]
    inner = leaves[0] + leaves[1]
    shorter = replace(good, path=good.path[1:])
    with pytest.raises(Forged):
        shorter.verify(inner, token("brakes"), anchorage.trust)


def test_receipts_are_bounded_and_strict(anchorage: Anchorage) -> None:
    data = anchorage.receipt(4).encode()
    fields = wire.decode(data)
    bad = [
        b"",
        data[:-1],
        data + b"\0",
        wire.encode([2, *fields[1:]]),
        wire.encode(fields[:-1]),
        wire.encode([*fields[:2], [b"short"], *fields[3:]]),
        wire.encode([*fields[:2], [bytes(32)] * 65, *fields[3:]]),
        wire.encode([*fields[:3], bytes(1000), *fields[4:]]),
        wire.encode([*fields[:10], bytes(400_000)]),
        bytes(1 << 20),
    ]
    for item in bad:
        with pytest.raises(Malformed):
            Receipt.decode(item)
    with pytest.raises(Malformed):
        EntryProof.decode(bytes(4 << 20))
