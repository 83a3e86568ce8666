"""A broker reads records: node, authority and publisher as processes of their own, and a search of the node's memory
and disk for what it must not know.

The same search of the node finds what it does know (the token), and the same search of the publisher finds every
canary: a search that found nothing anywhere would prove nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from stack import CHEAP, PASSPHRASE, READ, WRITE, python_path, wait_until

from tallystick.authority.client import grant_entries, policy_entry
from tallystick.authority.master import MASTER_FILE, open_master
from tallystick.client.session import Session
from tallystick.errors import Refused
from tallystick.identity.enrol import enrol
from tallystick.ledger import entries
from tallystick.node.instance import create_instance
from tallystick.node.settings import NodeSettings
from tallystick.policy.attribute import category
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.policy.topic_code import TopicCode
from tallystick.record.schema import Schema
from tallystick.runtime.sources import SystemClock, SystemEntropy

HERE, PAGE = Path(__file__).parent, os.sysconf("SC_PAGE_SIZE")
TOPIC, COLUMN, ROW = "canary-of-the-name", "canary_of_the_column", "canary-of-the-row-"
WANTED, ATTRIBUTE, VALUE = "canary-of-the-interest", "canary_of_the_attribute", "canary-of-the-value"
INTEREST = f'{COLUMN} in ("{ROW}000042", "{WANTED}")'
POLICY = f'{ATTRIBUTE}::"{VALUE}"' if find_spec("pymcl") else ""
SCHEMA = Schema.parse(f"{COLUMN} string")


@contextmanager
def child(*arguments: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """A child that is ready: its process and what it told."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "canary_child.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path(HERE, HERE.parent)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the {arguments[0]} did not start"
        yield process.pid, json.loads(line)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(20)


def memory_of(pid: int) -> Iterator[bytes]:
    """Everything in the memory that a process can write and has touched, run of pages by run of pages."""
    folder = Path(f"/proc/{pid}")
    with open(folder / "mem", "rb", buffering=0) as memory, open(folder / "pagemap", "rb", buffering=0) as pagemap:
        for line in (folder / "maps").read_text().splitlines():
            span, rights, *_ = line.split()
            start, end = (int(number, 16) for number in span.split("-"))
            if not rights.startswith("rw"):  # what a process has not written, it did not learn
                continue
            pagemap.seek(start // PAGE * 8)
            pages = np.frombuffer(pagemap.read((end - start) // PAGE * 8), "<u8")
            held = np.flatnonzero(pages >> 62)  # present, or swapped out
            for run in np.split(held, np.flatnonzero(np.diff(held) > 1) + 1):
                if len(run):
                    try:
                        memory.seek(start + int(run[0]) * PAGE)
                        yield memory.read(len(run) * PAGE)
                    except OSError:  # a region that went away, or of a device
                        break


def files_in(folder: Path) -> Iterator[bytes]:
    return (path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def found(canaries: dict[str, bytes], places: Iterator[bytes]) -> set[str]:
    names: set[str] = set()
    for data in places:
        names |= {name for name, canary in canaries.items() if canary in data}
        if len(names) == len(canaries):
            break
    return names


def is_known(owner: Session, token: bytes) -> bool:
    """Whether the authority has seen the topic on the ledger."""
    with suppress(Refused):
        return bool(owner.authority.schemas(token))
    return False


SPACE = AttributeSpace.of("acme", category(ATTRIBUTE, [VALUE, "none"]))


def give_attribute(owner: Session, to: Session) -> None:
    """Declare the attribute, and grant it."""
    owner.authority.declare_attributes(SPACE.encode())
    tenant, principal = owner.identity.tenant, to.identity.principal
    held = SPACE.grant({ATTRIBUTE: VALUE})
    owner.author.write(*grant_entries(owner.authority, tenant, principal, held, owner.entropy.bytes(32)))


def lock_topic(owner: Session, token: bytes) -> None:
    """Set a policy on the topic's only column group, and wait until the authority has taken it over."""
    formula, salt = parse(POLICY, SPACE), owner.entropy.bytes(32)
    owner.author.write(policy_entry(owner.authority, token, 0, formula, salt))
    wait_until(lambda: bool(owner.authority.topic_policies(token)))


def test_the_node_knows_no_row_no_name_no_interest_no_policy_and_no_key(tmp_path: Path) -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    trust = create_instance(
        tmp_path, "canaries", PASSPHRASE, NodeSettings(), int(clock.now() * 1000), entropy, cost=CHEAP
    )
    with ExitStack() as open_things:
        node, told = open_things.enter_context(child("node", str(tmp_path)))
        node_url = told["url"]
        _, told = open_things.enter_context(child("authority", str(tmp_path), node_url))

        def join(name: str, invite: str) -> Session:
            identity = enrol(
                tmp_path / name,
                name,
                invite,
                trust=trust,
                authority_url=told["url"],
                node_urls=(node_url,),
                clock=clock,
                entropy=entropy,
            )
            return open_things.enter_context(Session(identity, clock=clock, entropy=entropy))

        owner, car, reader = map(join, ("owner", "car", "reader"), told["invites"])
        token = owner.create_topic(TOPIC, SCHEMA.encode())
        owner.author.write(
            entries.grant(token, car.identity.principal, int(WRITE)),
            entries.grant(token, reader.identity.principal, int(READ)),
        )
        if POLICY:
            give_attribute(owner, reader)
        wait_until(lambda: is_known(owner, token))
        if POLICY:
            lock_topic(owner, token)
        owner.authority.labels(token, TopicCode.read([f"{COLUMN}:4"], SCHEMA.arrow).encode())
        arguments = (str(car.identity.home), TOPIC, COLUMN, ROW, POLICY)
        publisher, told = open_things.enter_context(child("publisher", *arguments))
        subscriber = reader.subscriber(TOPIC, interest=INTEREST)
        assert subscriber._opener.held.permit.labels
        assert [one.to_pylist() for one in subscriber.poll(5_000)] == [[{COLUMN: f"{ROW}000042"}]]
        assert not subscriber.closed_parcels

        canaries = {
            "row": ROW.encode(),
            "column": COLUMN.encode(),
            "topic": TOPIC.encode(),
            "lane key": bytes.fromhex(told["lane key"]),
        } | ({"attribute": ATTRIBUTE.encode(), "its value": VALUE.encode()} if POLICY else {})
        master = open_master((tmp_path / "authority" / MASTER_FILE).read_bytes(), PASSPHRASE)
        secrets = {
            **canaries,
            "topic key": subscriber._opener.held.grant.private_keys[0][1],
            "undo token": subscriber._opener.held.grant.undo_token,
            "key that wraps the topic keys": master._wrap_key,
            "key of the tokens": master._token_key,
            "publisher's seed": car.identity.keys.signing_seed,
            "interest": WANTED.encode(),
            "label key": master.label_key(token, 1),
        }
        known = {"token": token}
        assert found({**secrets, **known}, memory_of(node)) == {"token"}
        assert found({**secrets, **known}, files_in(tmp_path / "node")) == {"token"}
        labels = {"label of the permit": subscriber._opener.held.permit.labels[0]}
        assert found(labels, files_in(tmp_path / "node")) == set(labels)
        canaries["label key"] = secrets["label key"]
        assert found(canaries, memory_of(publisher)) == set(canaries)
        if POLICY:  # and in the clear setting the formula lies where the lock lies
            with car.publisher(TOPIC, acks="anchored", anchor_check_s=0.05, policy=POLICY) as plain:
                plain.send([{COLUMN: "x"}])
            assert found(secrets, files_in(tmp_path / "node")) == {"attribute", "its value"}
