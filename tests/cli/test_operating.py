"""Commands for who operates: ledger, audit, inspect, authority."""

from __future__ import annotations

from pathlib import Path

import pyrage
import pytest
from commands import Fleet, done, refused, tally

ROW = b'{"vin": "V", "seq": 1}\n'


@pytest.fixture
def used(fleet: Fleet) -> Fleet:
    """With something published to `brakes`."""
    done("publish", "brakes", "--home", fleet.car, stdin=ROW)
    return fleet


def test_the_ledger_tells_its_head_and_who_vouches(used: Fleet) -> None:
    shown = done("ledger", "status", "--home", used.reader, "--json").json
    assert shown["height"] > 0
    assert "operator alone" in shown["vouched_by"]
    assert done("ledger", "status", "--home", used.reader, "--json").json["continues"].endswith("proved")


def test_a_history_is_whole_or_it_is_refused(used: Fleet) -> None:
    said = done("ledger", "history", "brakes", "--home", used.owner)
    assert "write by car (publisher) from 127.0.0.1 on brakes" in said.out
    assert said.err.startswith("note: these are all")
    items = done("ledger", "history", "brakes", "--json", "--home", used.owner).rows
    assert {item["kind"] for item in items} == {"operation"}


def test_an_audit_finds_by_principal_topic_kind_and_time(used: Fleet) -> None:
    refused(3, "publish", "brakes", "--home", used.reader, stdin=ROW)
    everything = done("audit", "--most", "10000", "--json", "--home", used.owner).rows
    assert {"grant", "topic", "operation", "anchor", "enrol"} <= {item["kind"] for item in everything}
    grants = done("audit", "--kind", "grant", "--home", used.owner).out
    assert "grant: topic brakes, principal car, rule allow, operations write+describe, host *" in grants
    by_topic = done("audit", "--topic", "brakes", "--json", "--home", used.owner).rows
    assert {item["kind"] for item in by_topic} == {"operation"}
    assert done("audit", "--from", "2020-01-01T00:00", "--kind", "topic", "--json", "--home", used.owner).rows
    assert done("audit", "--to", "2020-01-01", "--json", "--home", used.owner).out == ""
    assert refused(2, "audit", "--kind", "gossip", "--home", used.owner)[1].startswith("hint: known are enrol")
    assert refused(2, "audit", "--from", "noon", "--home", used.owner)


def test_receipts_and_exports(used: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "parcel.receipt"
    done("ledger", "receipt", "brakes", "--offset", "0", "-o", file, "--home", used.reader)
    assert done("inspect", file, "--json").json["kind"] == "receipt"
    entries = done("ledger", "export", "--home", used.owner).rows
    assert entries[0]["height"] == 1
    assert {entry["kind"] for entry in entries} >= {"enrol", "tenant", "anchor"}


def test_inspect_says_what_a_stranger_sees(used: Fleet, tmp_path: Path) -> None:
    assert "1 of 1 must sign" in done("inspect", used.trust).out
    certificate = done("inspect", used.folder / "node" / "certificate", "--json").json
    assert (certificate["kind"], certificate["kind_of_subject"]) == ("certificate", "node")
    invitation = tmp_path / "x.invite"
    invitation.write_text(done("principal", "invite", "--home", used.owner).out)
    assert done("inspect", invitation, "--json").json["kind"] == "invitation"
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(used.stack.node.ledger.checkpoint())
    assert done("inspect", checkpoint, "--json").json["origin"].startswith("tallystick/")
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"nonsense")
    assert refused(3, "inspect", nonsense)[1].startswith("hint: it knows trust file, invitation")


def test_the_authority_is_backed_up_while_it_runs_and_restored_elsewhere(used: Fleet, tmp_path: Path) -> None:
    assert done("authority", "status", used.folder, "--json").json["ready"] == 1
    counted = done("node", "status", used.folder, "--json").json
    assert counted["ledger_height"] > 0
    assert counted["carrier_lanes"] >= 0
    identity = pyrage.x25519.Identity.generate()
    (tmp_path / "age.key").write_text(f"# created\n{identity}\n")
    backup = tmp_path / "fleet.age"
    done("authority", "backup", used.folder, "--to", identity.to_public(), "-o", backup)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert refused(2, "authority", "backup", used.folder, "--to", "me", "-o", tmp_path / "x")[1].startswith(
        "hint: age-keygen"
    )
    other = tmp_path / "other"
    other.mkdir()
    (other / "trust.json").write_text(used.trust.read_text())
    restore = ["authority", "restore", backup, other, "--identity", tmp_path / "age.key"]
    done(*restore)
    assert (other / "authority" / "master.key").exists()
    assert refused(2, *restore)[1] == "hint: restore into an empty folder"
    stranger = tmp_path / "stranger.key"
    stranger.write_text(str(pyrage.x25519.Identity.generate()))
    (other / "authority").rename(other / "moved")
    assert refused(3, *restore[:-1], stranger)[0] == "error: backup: cannot open"


def test_fsck_of_a_ledger_that_was_edited_names_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import apsw
    from stack import PASSPHRASE, Stack

    monkeypatch.setenv("TALLY_PASSPHRASE", PASSPHRASE.decode())
    with Stack(tmp_path):
        pass
    assert done("ledger", "fsck", tmp_path).out.startswith("the ledger is whole up to height")
    connection = apsw.Connection(str(tmp_path / "node" / "ledger.sqlite"))
    connection.execute("UPDATE transactions SET refused = 1 WHERE number = 0")
    connection.close()
    assert "transaction 0" in refused(3, "ledger", "fsck", tmp_path)[0]


def test_an_instance_that_is_not_there(tmp_path: Path) -> None:
    for arguments in (["up"], ["ledger", "fsck"], ["authority", "status"], ["tenant", "create", "x"]):
        said = refused(2, *arguments, tmp_path / "nowhere")
        assert said[0].endswith("no instance is here")
        assert said[1].startswith("hint: tally init")


def test_what_was_never_started_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_PASSPHRASE", "open sesame")
    made = tally("init", tmp_path / "new", "--json")
    assert made.json["passphrase_written"] is False
    assert not (tmp_path / "new" / "passphrase").exists()
    assert refused(2, "tenant", "create", "acme", tmp_path / "new")[1].startswith("hint: tally up")
    assert refused(2, "init", tmp_path / "new")[0].endswith("an instance is here already")
