"""`tally overlay`: an overlay is founded, its plan written by a person, signed by two of three, and submitted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Fleet, done, refused, tally
from ledger_world import seed
from stack import PASSPHRASE

from tallystick.client.plan_file import SignedPlan
from tallystick.client.session import Session
from tallystick.crypto.signatures import SigningKey
from tallystick.identity.folder import Identity
from tallystick.ledger import entries
from tallystick.ledger.contracts.plans import ENTRUSTED, OVERLAYS, find_plan
from tallystick.node.instance import open_root
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.plan import node_id, overlay_id

ADMINISTRATORS = ("owner", "car", "reader")


def enrolled(fleet: Fleet, what: str, count: int) -> list[str]:
    """So many new nodes, by their identifiers."""
    trust, root = fleet.stack.node.trust, open_root(fleet.folder, PASSPHRASE)
    now_ms = int(fleet.stack.clock.now() * 1000)
    certificates = []
    for number in range(count):
        public = SigningKey.from_seed(seed(f"{what} {number}")).public.raw
        subject, until = subject_id(trust.instance, public), now_ms + 86_400_000
        made = Certificate(
            trust.instance, SubjectKind.NODE, subject, ALL_TENANTS, public, b"", now_ms - 1_000, until, ROOT_ID
        )
        certificates.append(made.sign(trust.root_signer(root)))
    with Session.open(fleet.owner) as session:
        session.author.write(*map(entries.enrol, certificates))
    return [one.subject.hex() for one in certificates]


@pytest.fixture(scope="module")
def relays(fleet: Fleet) -> list[str]:
    """Twelve enrolled nodes: enough for two overlays."""
    return enrolled(fleet, "relay", 12)


@pytest.fixture(scope="module")
def town(fleet: Fleet) -> bytes:
    return found(fleet, "town")


def identifier(home: Path) -> str:
    return Identity.load(home).principal.hex()


def found(fleet: Fleet, name: str) -> bytes:
    """An overlay whose plans two of owner, car and reader sign."""
    people = [identifier(home) for home in (fleet.owner, fleet.car, fleet.reader)]
    return bytes.fromhex(done("overlay", "found", fleet.folder, name, *people, "--yes", "--json").json["overlay"])


def written(folder: Path, overlay: str, relays: list[str], operator: str = "") -> Path:
    """A plan of two virtual nodes, as a person writes it."""
    lines = [f'overlay = "{overlay}"']
    for name, parent, seats in (("hub", "", relays[:3]), ("edge", "hub", relays[3:6])):
        lines += ["[[nodes]]", f'name = "{name}"', *([f'parent = "{parent}"'] if parent else [])]
        for relay in seats:
            lines += ["[[nodes.relays]]", f'principal = "{relay}"', f'address = "{relay[:8]}.example:7443"']
            lines += [f'link_key = "{seed(relay).hex()}"', f'operator = "{operator or relay[:4]}"']
    path = folder / f"{overlay}.toml"
    path.write_text("\n".join(lines))
    return path


def test_a_plan_is_signed_by_one_after_the_other_and_submitted(fleet: Fleet, relays: list[str], tmp_path: Path) -> None:
    overlay, file = found(fleet, "county"), written(tmp_path, "county", relays)
    assert overlay == overlay_id(fleet.stack.node.trust.instance, "county")
    assert "no plan in force" in refused(2, "overlay", "plan", "show", "county", "--home", fleet.owner)[0]
    assert "nobody has signed" in refused(2, "overlay", "plan", "submit", file, "--home", fleet.owner)[0]
    soon = fleet.stack.node.ledger.height + 60
    first = done("overlay", "plan", "sign", file, "--from", soon, "--home", fleet.owner)
    assert "1 signature of 2" in first.out
    assert "signing plan 1 of overlay" in first.err
    assert "2 virtual nodes, 6 relays" in first.err
    error, hint = refused(2, "overlay", "plan", "submit", file, "--home", fleet.owner)
    assert "1 of 2 signatures are there" in error
    assert "by car, reader" in hint.replace("reader, car", "car, reader")
    second = done("overlay", "plan", "sign", file, "--home", fleet.car, "--json").json
    assert (second["signed"], second["missing"]) == (2, 0)
    assert f"signed by 2 of 2, from height {soon} on" in done("overlay", "plan", "show", file, "--home", fleet.car).out
    told = done("overlay", "plan", "submit", file, "--home", fleet.reader, "--json").json
    assert (told["version"], told["first_height"]) == (1, soon)
    plan = fleet.stack.node.ledger.query(lambda state: find_plan(state.row, overlay, 1))
    assert plan is not None
    assert plan.encode() == SignedPlan.read(file).plan  # type: ignore[union-attr]
    assert [node.identifier for node in plan.nodes] == [node_id(overlay, "hub"), node_id(overlay, "edge")]
    assert [relay.identifier.hex() for node in plan.nodes for relay in node.relays] == relays[:6]
    # The same file is the next plan now, which nobody has signed.
    assert "not what the others signed" in refused(2, "overlay", "plan", "submit", file, "--home", fleet.reader)[0]


def test_nobody_signs_what_the_others_did_not(fleet: Fleet, relays: list[str], tmp_path: Path) -> None:
    found(fleet, "village")
    file = written(tmp_path, "village", relays)
    done("overlay", "plan", "sign", file, "--from", 100_000, "--home", fleet.owner)
    assert SignedPlan.read(file).first == 100_000  # type: ignore[union-attr]
    error, hint = refused(2, "overlay", "plan", "sign", file, "--from", 100_001, "--home", fleet.car)
    assert "not what the others signed" in error
    assert f"remove {file}.signatures" in hint
    written(tmp_path, "village", relays[::-1])  # altered on its way
    assert "not what the others signed" in refused(2, "overlay", "plan", "sign", file, "--home", fleet.car)[0]
    Path(f"{file}.signatures").write_text("[]")
    assert "not a file of signatures" in refused(2, "overlay", "plan", "sign", file, "--home", fleet.car)[0]


def test_a_forged_signature_is_the_ledgers_to_refuse(fleet: Fleet, relays: list[str], tmp_path: Path) -> None:
    found(fleet, "farm")
    file = written(tmp_path, "farm", relays, operator="one for all")
    said = done("overlay", "plan", "sign", file, "--home", fleet.owner)
    assert "note: one for all has more relays of virtual node" in said.err
    signed = SignedPlan.read(file)
    assert signed is not None
    signed.signatures[bytes.fromhex(identifier(fleet.car))] = next(iter(signed.signatures.values()))
    signed.write(file)
    assert "does not verify" in refused(3, "overlay", "plan", "submit", file, "--home", fleet.owner)[0]


def test_only_administrators_sign(fleet: Fleet, relays: list[str], tmp_path: Path) -> None:
    owner = identifier(fleet.owner)
    done("overlay", "found", fleet.folder, "hamlet", owner, "--yes")
    file = written(tmp_path, "hamlet", relays)
    error, hint = refused(2, "overlay", "plan", "sign", file, "--home", fleet.car)
    assert "is no administrator" in error
    assert "these are" in hint
    row = fleet.stack.node.ledger.query(
        lambda state: state.row(OVERLAYS(overlay_id(fleet.stack.node.trust.instance, "hamlet")))
    )
    assert row is not None
    assert (row.threshold, [one.hex() for one in row.administrators]) == (1, [owner])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("overlay = ", "overly = ", 'unknown key "overly"'),
        ("address = ", "adress = ", 'unknown key "adress"'),
        ('parent = "hub"', 'parent = "nowhere"', "a tree expected"),
        ('name = "edge"', 'name = "hub"', "a virtual node is listed twice"),
        ("link_key = ", "# ", "link_key is missing"),
        ('link_key = "', 'link_key = "x', "64 hexadecimal digits"),
        ("[[nodes]]", "[[nodes", "plan.toml: "),
    ],
)
def test_a_mistake_names_file_place_and_remedy(
    fleet: Fleet, town: bytes, relays: list[str], tmp_path: Path, old: str, new: str, words: str
) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(written(tmp_path, "town", relays).read_text().replace(old, new, 1))
    assert words in refused(2, "overlay", "plan", "sign", file, "--home", fleet.owner)[0]


def test_json_says_the_same_as_toml(fleet: Fleet, relays: list[str], tmp_path: Path) -> None:
    import tomllib

    found(fleet, "port")
    file = written(tmp_path, "port", relays)
    other = tmp_path / "port.json"
    other.write_text(json.dumps(tomllib.loads(file.read_text())))
    shown = [done("overlay", "plan", "show", one, "--home", fleet.owner, "--json").json for one in (file, other)]
    assert shown[0] == shown[1]
    assert len(shown[0]["nodes"]) == 2


def test_an_owner_entrusts_a_topic_and_takes_it_back(fleet: Fleet, relays: list[str], tmp_path: Path) -> None:
    topic, overlay = fleet.topic("carried"), found(fleet, "city")
    refused(3, "overlay", "entrust", topic, "city", "edge", "--home", fleet.owner)  # it has no plan yet
    bring_into_force(fleet, written(tmp_path, "city", relays[6:]))
    shown = done("overlay", "plan", "show", "city", "--home", fleet.owner).out
    assert shown.startswith(f"plan 1 of overlay {overlay.hex()}: 2 virtual nodes, 6 relays\n")
    assert "no virtual node" in refused(3, "overlay", "entrust", topic, "city", "none", "--home", fleet.owner)[-1]
    assert "which overlay" in refused(2, "overlay", "entrust", topic, "--home", fleet.owner)[0]
    said = done("overlay", "entrust", topic, "city", "edge", "--lease", "20s", "--home", fleet.owner)
    assert said.out == "carried travels over city, from edge on\n"
    with Session.open(fleet.owner) as session:
        token = {name: one for one, name in session.authority.names(b"").topics}[topic]
        assert (session.view.row(ENTRUSTED(token)) or ())[:3] == (overlay, node_id(overlay, "edge"), 20_000)
        done("overlay", "entrust", topic, "--back", "--home", fleet.owner)
        assert (session.view.row(ENTRUSTED(token)) or ())[:1] == (bytes(16),)


def bring_into_force(fleet: Fleet, file: Path) -> None:
    """Two sign the plan, one submits it, and blocks go by until it counts."""
    ledger = fleet.stack.node.ledger
    first = ledger.height + 30
    for home in (fleet.owner, fleet.car):
        done("overlay", "plan", "sign", file, *(["--from", first] if home == fleet.owner else []), "--home", home)
    done("overlay", "plan", "submit", file, "--home", fleet.owner)
    with Session.open(fleet.owner) as session:
        own = (session.identity.principal, session.identity.tenant)
        while ledger.height <= first:
            session.author.write(*(entries.refuse_attributes(*own, refused=refuses) for refuses in (True, False)))


def test_an_identity_is_linked_to_an_edge_whose_relays_it_knows(fleet: Fleet, town: bytes) -> None:
    error, hint = refused(2, "principal", "overlay", "town", "edge", "--home", fleet.car)
    assert 'overlay "town" has no plan in force' in error
    assert "tally overlay plan submit" in hint
    assert "which overlay" in refused(2, "principal", "overlay", "--home", fleet.car)[0]
    assert "asks its node" in done("principal", "overlay", "--off", "--home", fleet.car).out
    way = fleet.car / "overlay.json"
    way.write_text(json.dumps({"overlay": town.hex(), "edge": node_id(town, "edge").hex()}))
    said = tally("status", "--home", fleet.car)
    assert (said.code, "no plan in force" in said.out) == (4, True)
    done("principal", "overlay", "--off", "--home", fleet.car)
    assert not way.exists()
