"""An authority that knows several nodes goes on where one of them is dead."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from stack import PASSPHRASE, Stack, impatient

from tallystick.errors import Unavailable
from tallystick.identity.nodes import ask_node
from tallystick.node.authority import AuthorityProcess
from tallystick.runtime.address import Address

DEAD = "http://127.0.0.1:1"


def serve(stack: Stack, *others: Address) -> tuple[AuthorityProcess, threading.Thread]:
    """An authority whose own node is another one, and dead."""
    other = replace(stack.node.keys.certificate, subject=b"d" * 16)
    nodes = [Address(DEAD, other.subject, other.verify_key), *others]
    process = AuthorityProcess(stack.folders.authority, PASSPHRASE, nodes, stack.clock, stack.entropy)
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    return process, thread


def test_the_next_node_is_asked_where_the_first_is_dead(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.stop_authority()
        found = ask_node(stack.node.url, stack.node.trust, stack.clock, stack.entropy, insecure=False)
        process, thread = serve(stack, Address(stack.node.url, found.subject, found.verify_key))
        process.authority.work()  # follows the ledger
        process.stop()
        thread.join(20)
        process, thread = serve(stack)
        with impatient(process._http), pytest.raises(Unavailable):
            process.authority.work()
        process.stop()
        thread.join(20)
        stack.start_authority()
