"""Commands for who operates: ledger, audit, inspect, authority."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pyrage
import pytest
from commands import Fleet, done, refused, tally

from tallystick.client.reader import Finding

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
    assert done("audit", "--from", "-1h", "--kind", "topic", "--json", "--home", used.owner).rows
    assert refused(2, "audit", "--kind", "gossip", "--home", used.owner)[1].startswith("hint: known are enrol")
    assert refused(2, "audit", "--from", "noon", "--home", used.owner)


def test_receipts_and_exports(used: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "parcel.receipt"
    done("ledger", "receipt", "brakes", "--offset", "0", "-o", file, "--home", used.reader)
    assert done("inspect", file, "--json").json["kind"] == "receipt"
    [row] = done("subscribe", "brakes", "--origin", "-n", "1", "--home", used.reader).rows
    verify = ("verify", file, "--trust", used.trust, "--parcel", row["_parcel"])
    told = done(*verify, "--topic", "brakes", "--home", used.owner, "--json").json
    assert (told["anchored"]["offset"], told["parcel"]) == (0, row["_parcel"])
    newest = tmp_path / "fleet.checkpoint"
    made = done("ledger", "checkpoint", "-o", newest, "--home", used.reader, "--json").json
    assert done("verify", newest, "--trust", used.trust, "--json").json["height"] == made["height"]
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
    finding = Finding.retired(b"t" * 16, 1, 2, 5).keep(tmp_path)
    shown = done("inspect", finding, "--json").json
    assert (shown["kind"], shown["reason"], shown["offset"], shown["end"]) == ("finding", "retired", 2, 5)
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"nonsense")
    assert refused(3, "inspect", nonsense)[1].startswith("hint: it knows trust file, invitation")


def test_the_authority_is_backed_up_while_it_runs_and_restored_elsewhere(used: Fleet, tmp_path: Path) -> None:
    assert done("authority", "status", used.folder, "--json").json["ready"] == 1
    counted = done("node", "status", used.folder, "--json").json
    assert counted["ledger_height"] > 0
    assert counted["carrier_lanes"] >= 0
    made = done("keygen", "-o", tmp_path / "age.key")
    assert (tmp_path / "age.key").stat().st_mode & 0o777 == 0o600
    assert made.out.startswith("age1")
    assert "AGE-SECRET-KEY-" not in made.out + made.err
    assert refused(2, "keygen", "-o", tmp_path / "age.key")[0].endswith("exists already")
    assert refused(2, "keygen", "-o", tmp_path / "age.key" / "x")[1] == "hint: name a file that you may write"
    backup = tmp_path / "fleet.age"
    done("authority", "backup", used.folder, "--to", made.out.strip(), "-o", backup)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert refused(2, "authority", "backup", used.folder, "--to", "me", "-o", tmp_path / "x")[1].startswith(
        "hint: tally keygen"
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
    restore[2] = used.trust
    assert refused(2, *restore)[0] == f"error: {used.trust}: it is no backup"


def test_a_backup_of_another_instance_is_not_restored(used: Fleet, tmp_path: Path) -> None:
    key = done("keygen", "-o", tmp_path / "age.key").out.strip()
    done("authority", "backup", used.folder, "--to", key, "-o", tmp_path / "fleet.age")
    other = tmp_path / "other"
    done("init", other)
    (other / "authority").rename(other / "authority.lost")
    restore = ("authority", "restore", tmp_path / "fleet.age", other, "--identity", tmp_path / "age.key")
    assert refused(2, *restore)[0].startswith("error: the backup is of instance ")
    assert not (other / "authority").exists()


def test_a_home_with_the_trust_file_of_another_instance_says_so(used: Fleet, tmp_path: Path) -> None:
    done("init", tmp_path / "other")
    home = tmp_path / "car"
    copytree(used.car, home)
    (home / "trust.json").write_bytes((tmp_path / "other" / "trust.json").read_bytes())
    error, hint = refused(3, "principal", "show", "--home", home)
    assert error == f"error: {home}: its trust.json does not fit: certificate: of another instance"
    assert hint.startswith("hint: put trust.json of its own instance back")


def test_a_file_that_is_no_proof_is_named(used: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"vin": "V1"}\n')
    error, hint = refused(3, "verify", file, "--trust", used.trust)
    assert error.startswith(f"error: {file}: not a whole proof, receipt or checkpoint: ")
    assert hint.startswith("hint: tally prove, tally ledger receipt and tally ledger checkpoint write them; ")
    (tmp_path / "empty").mkdir()
    assert refused(2, "inspect", tmp_path / "empty")[0] == f"error: {tmp_path / 'empty'}: no file is in this folder"


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
