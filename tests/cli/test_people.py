"""Commands about tenants, principals, topics, rights and permits: what they do, and what they say when they do not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Fleet, done, refused, tally
from stack import PASSPHRASE

from tallystick.identity.folder import Identity
from tallystick.node.instance import create_node
from tallystick.node.settings import NodeSettings


def test_an_invitation_works_once_and_says_what_to_do_then(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "one.invite"
    file.write_text(done("principal", "invite", "acme", fleet.folder).out)
    shown = done("principal", "enrol", file, "--home", tmp_path / "one", "--name", "van", "--json").json
    assert shown["name"] == "van"
    assert len(shown["principal"]) == 32
    assert refused(3, "principal", "enrol", file, "--home", tmp_path / "two") == [
        "error: the authority refused the invitation",
        "hint: it works once, and expires: ask for a new one",
    ]
    assert refused(2, "principal", "enrol", file, "--home", tmp_path / "one")[0].endswith("an identity is here already")


def test_what_is_no_invitation_is_told_so(fleet: Fleet, tmp_path: Path) -> None:
    said = refused(2, "principal", "enrol", "nowhere.invite", "--home", tmp_path / "x")
    assert said == [
        "error: nowhere.invite: neither an invitation nor a file that holds one",
        "hint: an invitation begins tally-invite-",
    ]
    whole = done("principal", "invite", "--home", fleet.owner).out.strip()
    cut = refused(3, "principal", "enrol", whole[:-20], "--home", tmp_path / "x")
    assert cut[1] == "hint: was it copied whole?"


def test_an_invitation_for_another_trust_file_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    from tallystick.identity.invitation import Invitation

    invited = Invitation.decode(done("principal", "invite", "--home", fleet.owner).out)
    false = Invitation(invited.code, invited.instance, bytes(32), invited.authority_url, invited.node_urls)
    said = refused(3, "principal", "enrol", false.encode(), "--home", tmp_path / "x")
    assert said[0] == "error: enrolment: the trust file is not the one that the invitation names"
    assert not (tmp_path / "x" / "identity.json").exists()


def test_only_the_operator_makes_tenants(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "acme" in done("tenant", "list", fleet.folder).out.splitlines()
    assert "acme" in done("tenant", "list", fleet.folder, "--json").json
    assert refused(2, "tenant", "create", "acme", fleet.folder) == ['error: tenant "acme" exists already']
    monkeypatch.setenv("TALLY_PASSPHRASE", "wrong")
    assert refused(3, "tenant", "create", "other", fleet.folder)[0] == "error: master key: cannot open"


def test_only_the_owner_invites_and_sees_names(fleet: Fleet) -> None:
    assert refused(3, "principal", "invite", "--home", fleet.car)[0].startswith("error: only the owner")
    names = {one["name"] for one in done("principal", "list", "--home", fleet.owner, "--json").json}
    assert {"owner", "car", "reader"} <= names
    assert [one["name"] for one in done("principal", "list", "--home", fleet.car, "--json").json] == ["car"]


def test_an_identity_shows_itself_but_never_its_keys(fleet: Fleet) -> None:
    shown = done("principal", "show", "--home", fleet.car)
    keys = (fleet.car / "keys").read_bytes().hex()
    assert "name" in shown.out
    assert keys[:64] not in shown.out
    assert keys[64:] not in shown.out


def test_an_identity_can_be_told_where_its_node_moved(fleet: Fleet, tmp_path: Path) -> None:
    home = tmp_path / "van"
    done("principal", "enrol", done("principal", "invite", "--home", fleet.owner).out.strip(), "--home", home)
    done("principal", "address", "--node-url", "http://127.0.0.1:9", "--home", home)
    said = refused(4, "ledger", "status", "--home", home)
    assert said[1].startswith("hint: is it running (tally up)")
    node = fleet.stack.node.url
    assert done("principal", "address", "--node-url", node, "--home", home, "--json").json["nodes"] == [node]
    done("ledger", "status", "--home", home)


def test_an_identity_of_several_nodes_learns_which_of_them_is_at_its_one_address(fleet: Fleet, tmp_path: Path) -> None:
    stack, home = fleet.stack, tmp_path / "lorry"
    done("principal", "enrol", done("principal", "invite", "--home", fleet.owner).out.strip(), "--home", home)
    other = create_node(
        fleet.folder, tmp_path / "other", PASSPHRASE, NodeSettings(), int(stack.clock.now() * 1000), stack.entropy
    )
    identity = Identity.load(home)
    replace(identity, nodes=(other, *identity.nodes)).save()  # as the authority may name them
    done("principal", "address", "--node-url", stack.node.url, "--home", home)
    named = [node.subject for node in Identity.load(home).nodes]  # other tests enrol nodes here, too
    assert (named[0], other.subject in named) == (stack.node.identifier, True)
    done("ledger", "status", "--home", home)


def test_without_a_home_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TALLY_HOME", raising=False)
    assert refused(2, "topic", "list") == [
        "error: no identity folder is named",
        "hint: use --home, or set TALLY_HOME, or choose one for good: tally use DIR",
    ]
    monkeypatch.setenv("TALLY_HOME", str(tmp_path))
    assert refused(2, "topic", "list")[1] == "hint: tally principal enrol makes one"


def test_a_revoked_principal_is_nobody(fleet: Fleet, tmp_path: Path) -> None:
    home = tmp_path / "thief"
    done("principal", "enrol", done("principal", "invite", "--home", fleet.owner).out.strip(), "--home", home)
    done("principal", "revoke", "thief", "--home", fleet.owner)
    states = {one["name"]: one["state"] for one in done("principal", "list", "--home", fleet.owner, "--json").json}
    assert states["thief"] == "revoked"
    assert refused(3, "topic", "list", "--home", home)


def test_an_identity_gets_new_keys_and_goes_on(fleet: Fleet, tmp_path: Path) -> None:
    home, copy = tmp_path / "rotated", tmp_path / "copy"
    done("principal", "enrol", done("principal", "invite", "--home", fleet.owner).out.strip(), "--home", home)
    shutil.copytree(home, copy)
    principal = done("principal", "show", "--home", home, "--json").json["principal"]
    assert done("principal", "rekey", "--home", home).out == f"principal {principal} has new keys\n"
    assert done("principal", "rekey", "--home", home, "--json").json["principal"] == principal
    done("topic", "list", "--home", home)
    assert refused(3, "topic", "list", "--home", copy)  # the old keys are nobody's


def test_a_topic_its_schema_and_its_end(fleet: Fleet) -> None:
    made = done("topic", "create", "doors", "--schema", "vin string", "--padded", "--home", fleet.owner, "--json").json
    assert made["schema"] == "vin string"
    assert refused(3, "topic", "create", "doors", "--schema", "vin string", "--home", fleet.owner)[0] == (
        'error: topic "doors" exists already'
    )
    grown = done("topic", "schema", "doors", "--add", "open bool", "--home", fleet.owner).out
    assert grown == "version 2: vin string, open bool\n"
    assert refused(2, "topic", "schema", "doors", "--widen", "vin int64", "--home", fleet.owner)[0].startswith(
        'error: column "vin": string cannot become int64'
    )
    assert "epoch" in done("topic", "rotate", "doors", "--home", fleet.owner).out
    shown = done("topic", "show", "doors", "--home", fleet.owner, "--json").json
    assert (shown["owner"], shown["flags"], shown["schema_version"]) == ("owner", ["padded"], 2)
    chosen = done("topic", "config", "doors", "--home", fleet.owner, "--json").json
    assert (chosen["partitions"], chosen["replicas"], chosen["keep"], chosen["flags"]) == (1, 1, "forever", ["padded"])
    assert [one["schema"] for one in chosen["schemas"]] == ["vin string", "vin string, open bool"]
    assert "schema version 2  vin string, open bool" in done("topic", "config", "doors", "--home", fleet.owner).out
    done("topic", "delete", "doors", "--home", fleet.owner)
    assert "closed" in next(
        line for line in done("topic", "list", "--home", fleet.owner).out.splitlines() if line.endswith("doors")
    )


def test_a_topic_is_made_on_terms_and_shows_them(fleet: Fleet) -> None:
    make = ("topic", "create", "wipers", "--schema", "a int8", "--home", fleet.owner)
    assert refused(2, *make, "--keep", "²d")[0] == 'error: --keep "²d" is neither a time nor a number'
    assert refused(2, *make, "--pace", "1h")[0] == 'error: --pace "1h": a time of at most 30s expected'
    done(*make, "--keep", "1440min", "--pace", "500ms", "--clear")
    shown = done("topic", "show", "wipers", "--home", fleet.owner, "--json").json
    assert (shown["keep"], shown["pace"], shown["flags"]) == ("1d", "500ms", ["clear"])
    identity = Identity.load(fleet.owner)
    assert (shown["tenant"], shown["bound_by"]) == (identity.tenant.hex(), identity.authority.subject.hex())
    plain = done("topic", "show", "brakes", "--home", fleet.owner, "--json").json
    assert (plain["keep"], plain["pace"]) == ("forever", "0ms")


def test_a_name_leads_to_one_s_own_tenant(fleet: Fleet, tmp_path: Path) -> None:
    """A rival who lets us describe a topic of its own is not taken for us."""
    rival = tmp_path / "rival"
    done(
        "principal", "enrol", "-", "--home", rival, stdin=done("tenant", "create", "mirror", fleet.folder).out.encode()
    )
    made = done("topic", "create", "reflections", "--schema", "a int8", "--home", rival, "--json").json
    principal = done("principal", "show", "--home", fleet.owner, "--json").json["principal"]
    done("right", "grant", "reflections", principal, "read", "--home", rival)
    assert refused(2, "topic", "show", "reflections", "--home", fleet.owner) == [
        'error: topic "reflections" is not known to this identity',
        f"hint: another tenant's is named by its token: {made['token']}",
    ]
    assert done("topic", "show", made["token"], "--home", fleet.owner, "--json").json["topic"] == "reflections"
    own = done("topic", "create", "reflections", "--schema", "a int8", "--home", fleet.owner, "--json").json
    assert done("topic", "show", "reflections", "--home", fleet.owner, "--json").json["token"] == own["token"]


def test_a_topic_is_closed_under_either_word(fleet: Fleet) -> None:
    for word in ("close", "delete"):
        name = fleet.topic(f"end-by-{word}")
        said = done("topic", word, name, "--home", fleet.owner)
        assert said.out.startswith(f'closed topic "{name}"')
        assert "stays readable" in said.err
        assert refused(3, "topic", word, name, "--home", fleet.owner)


def test_a_wrong_schema_says_where(fleet: Fleet) -> None:
    said = refused(2, "topic", "create", "x", "--schema", "vin strng", "--home", fleet.owner)
    assert "strng" in said[0]


def test_a_topic_that_one_may_not_describe_does_not_exist(fleet: Fleet) -> None:
    done("topic", "create", "secret", "--schema", "a int8", "--home", fleet.owner)
    assert refused(2, "topic", "show", "secret", "--home", fleet.car)[0] == (
        'error: topic "secret" is not known to this identity'
    )
    assert refused(3, "subscribe", "secret", "--home", fleet.car)[0] == (
        'error: topic "secret" does not exist, or is not shown to this identity'
    )
    assert refused(3, "subscribe", "nosuch", "--home", fleet.car)[0] == (
        'error: topic "nosuch" does not exist, or is not shown to this identity'
    )


def test_rights_are_granted_listed_and_withdrawn(fleet: Fleet) -> None:
    done("topic", "create", "horn", "--schema", "a int8", "--home", fleet.owner)
    granted = done("right", "grant", "horn", "car", "write", "--home", fleet.owner)
    assert granted.out == "granted write to car on horn\n"
    signed = "grant: topic horn, principal car, rule allow, operations write+describe, host *"
    assert granted.err == f"signing {signed}\n"
    again = tally("right", "grant", "horn", "car", "write", "--home", fleet.owner)
    assert again.err == "note: nothing changed, it was so already\n"
    done("right", "grant", "horn", "car", "read", "--deny", "--host", "10.0.0.7", "--home", fleet.owner)
    rules = done("right", "list", "horn", "--home", fleet.owner, "--json").json
    assert [(one["name"], one["rule"], one["operations"], one["host"]) for one in rules] == [
        ("car", "deny", ["read"], "10.0.0.7"),
        ("car", "allow", ["write", "describe"], "*"),
    ]
    done("right", "withdraw", "horn", "car", "write", "--home", fleet.owner)
    assert refused(3, "publish", "horn", "--home", fleet.car, stdin=b'{"a": 1}\n')[0].startswith('error: topic "horn"')
    assert refused(2, "right", "grant", "horn", "reader", "read", "--home", fleet.car)


def test_a_pattern_holds_for_topics_to_come(fleet: Fleet) -> None:
    done("right", "grant", "lights/*", "car", "write", "--home", fleet.owner)
    done("topic", "create", "lights/rear", "--schema", "a int8", "--home", fleet.owner)
    done("publish", "lights/rear", "--home", fleet.car, stdin=b'{"a": 1}\n')


def test_a_permit_given_back_ends(fleet: Fleet) -> None:
    name = fleet.topic("mirrors")
    done("publish", name, "--home", fleet.car, stdin=b'{"vin": "V", "seq": 1}\n')
    live = [one for one in done("permit", "list", "--home", fleet.car, "--json").json if one["topic"] == name]
    assert [one["operation"] for one in live] == ["advertise"]
    done("permit", "undo", live[0]["permit"], "--home", fleet.car)
    after = done("permit", "list", "--ended", "--home", fleet.car, "--json").json
    assert [one["state"] for one in after if one["topic"] == name] == ["undone"]
    assert refused(3, "permit", "undo", live[0]["permit"], "--home", fleet.car)[0].endswith("is undone already")
    assert refused(2, "permit", "undo", "xyz", "--home", fleet.car)[1] == "hint: tally permit list shows them"


def test_json_is_one_document(fleet: Fleet) -> None:
    for arguments in (["topic", "list"], ["principal", "show"], ["ledger", "status"], ["right", "list", "brakes"]):
        json.loads(done(*arguments, "--home", fleet.owner, "--json").out)
