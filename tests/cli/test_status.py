"""`tally status`, a line for each part and the exit code that it promises; `tally use`, the home chosen once."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Fleet, Said, done, refused, tally

from tallystick.client.session import Session

WELL = ["ok home", "ok node", "ok authority", "ok ledger", "none witnesses", "none kafka"]


def states(said: Said) -> list[str]:
    return [" ".join(line.split()[:2]) for line in said.out.splitlines()]


def enrolled(fleet: Fleet, home: Path) -> Path:
    invitation = done("principal", "invite", "--home", fleet.owner).out.strip()
    done("principal", "enrol", invitation, "--home", home)
    return home


def test_all_is_well_for_an_identity_and_for_the_operator(fleet: Fleet) -> None:
    said = done("status", "--home", fleet.reader)
    assert states(said) == WELL
    assert f'{fleet.reader}, "reader" (--home)' in said.out
    assert states(done("status", fleet.folder, "--home", fleet.reader)) == WELL
    assert states(done("status", fleet.folder)) == ["none home", *WELL[1:]]
    shown = done("status", "--home", fleet.reader, "--json").json
    assert [(one["name"], one["state"]) for one in shown] == [tuple(line.split()[::-1]) for line in WELL]


def test_what_is_away_is_named_and_the_code_is_4(fleet: Fleet, tmp_path: Path) -> None:
    home = enrolled(fleet, tmp_path / "away")
    done("principal", "address", "--node-url", "http://127.0.0.1:9", "--home", home)
    said = tally("status", "--home", home)
    assert said.code == 4
    assert states(said) == ["ok home", "away node", "ok authority", "away ledger", "none witnesses", "none kafka"]
    assert "http://127.0.0.1:9: it does not answer: Connection refused" in said.out
    assert said.err.splitlines()[-1] == "error: not well: node, ledger"


def test_whom_the_authority_does_not_know_is_refused_with_3(fleet: Fleet, tmp_path: Path) -> None:
    home = enrolled(fleet, tmp_path / "ghost")
    done("principal", "revoke", "ghost", "--home", fleet.owner)
    said = tally("status", "--home", home)
    assert said.code == 3
    assert "bad authority" in states(said)


def test_an_instance_that_never_ran_says_how_to_start_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_PASSPHRASE", "a passphrase for this test")
    folder = tmp_path / "fleet"
    done("init", folder)
    said = tally("status", folder)
    assert said.code == 4
    assert states(said)[1:3] == ["away node", "away authority"]
    assert "hint: tally up starts node and authority" in said.err
    assert refused(2, "status", tmp_path / "nowhere")[0].endswith("no instance is here")


def test_a_home_is_chosen_once(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert done("use").out == "no identity is chosen\n"
    assert refused(2, "status")[1].endswith("tally use DIR")
    assert refused(2, "use", tmp_path)[1] == "hint: tally principal enrol makes one"
    monkeypatch.chdir(fleet.reader.parent)
    assert done("use", "reader").out == f"using {fleet.reader}\n"
    monkeypatch.chdir(tmp_path)
    done("topic", "list")
    assert f'{fleet.reader}, "reader" (tally use)' in done("status").out
    with Session.open() as session:
        assert session.identity.name == "reader"
    assert '"car" (--home)' in done("status", "--home", fleet.car).out
    monkeypatch.setenv("TALLY_HOME", str(fleet.car))
    assert '"car" (TALLY_HOME)' in done("status").out
    monkeypatch.delenv("TALLY_HOME")
    assert done("use", "--none", "--json").json == {"home": None}
    assert refused(2, "topic", "list")[0] == "error: no identity folder is named"
