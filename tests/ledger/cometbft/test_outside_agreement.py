"""CometBFT's own code agrees with ours: its light client verifies our proofs, its state sync takes our snapshots, and
the messages that we wrote down are those of its module."""

from __future__ import annotations

import re
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chain_world import PROGRAM, QUICK, Chain, ChainWorld, FixedEntropy, require_cometbft, wait_until
from ledger_world import operation_batch, token

from tallystick.abci import messages as m
from tallystick.abci.protobuf import Message
from tallystick.errors import TallystickError
from tallystick.ledger.cometbft.application import ChainSettings
from tallystick.ledger.cometbft.client import chain_id
from tallystick.ledger.cometbft.home import NodeAddresses
from tallystick.ledger.cometbft.rpc import RpcEndpoint
from tallystick.node.processes import free_ports
from tallystick.node.validator import Validator, create_validator, find_sync, join_chain

HEART = token("heart")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    world = ChainWorld(tmp_path_factory.mktemp("sync"), 4)
    # A node that joins looks round for five seconds before it fetches, ten of these short blocks: what it has found
    # must still be there then, so none is dropped here.
    chain = Chain(world, settings=ChainSettings(snapshot_blocks=5, snapshots_kept=1_000))
    try:
        engine = chain.client()
        for transaction in world.founding():
            engine.wait(engine.submit(transaction.data, 0), 60)
        for _ in range(4):
            data = world.node.sign(*operation_batch(world, 32, [HEART], [world.monitor.id])).data
            engine.wait(engine.submit(data, 0), 60)
        engine.close()
        yield chain
    finally:
        chain.close()


def endpoint(chain: Chain, index: int = 0) -> RpcEndpoint:
    host, _, port = chain.world.cards[index].rpc.rpartition(":")
    return RpcEndpoint(host, int(port))


def header_hash(chain: Chain, height: int) -> str:
    asked = endpoint(chain)
    try:
        found: str = asked.call("commit", height=str(height))["signed_header"]["commit"]["block_id"]["hash"]
        return found
    finally:
        asked.close()


@pytest.mark.long
def test_a_new_node_joins_by_state_sync(chain: Chain, tmp_path: Path) -> None:
    world = chain.world
    ports = free_ports(2)
    folder = tmp_path / "joining"
    create_validator(folder, NodeAddresses(*(f"127.0.0.1:{port}" for port in ports)), FixedEntropy("joining"))
    wait_until(lambda: all(len(one.application.shelf.held()) >= 2 for one in chain.validators.values()))
    sync = find_sync([card.rpc for card in world.cards], world.trust)
    assert sync.hash == header_hash(chain, sync.height)
    join_chain(folder, world.trust, chain.genesis, world.cards, QUICK, sync)
    joined = Validator(folder, chain.program)
    try:
        joined.start()
        wait_until(lambda: joined.application._book is not None)
        first = joined.application.book.store.last_height()
        assert first is not None
        assert first > 2, "not by executing the history"
        newest = max(chain.heights().values())
        wait_until(lambda: joined.application.book.last.height > newest)
        engine = chain.client()
        placed = engine.submit(world.node.sign(*operation_batch(world, 8, [HEART], [world.monitor.id])).data, 0)
        engine.close()
        wait_until(lambda: joined.application.book.last.height >= placed.height)
        assert joined.application.book.tree.leaf(placed.number) == placed.leaf
        assert joined.application.book.reader.store.row(0).data == b"", "only the leaves came"  # type: ignore[union-attr]
    finally:
        joined.stop()


def test_cometbft_s_light_client_verifies_our_roots(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports(1)[0]
    servers = [f"http://{card.rpc}" for card in chain.world.cards]
    command = [
        *(require_cometbft(), "light", chain_id(chain.world.instance), "--laddr", f"tcp://127.0.0.1:{port}"),
        *("--primary", servers[0], "--witnesses", ",".join(servers[1:3]), "--home-dir", str(tmp_path)),
        *("--height", "2", "--hash", header_hash(chain, 2)),
    ]
    proxy = RpcEndpoint("127.0.0.1", port)
    with (tmp_path / "light.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found: list[dict[str, Any]] = []

        def verified() -> bool:
            try:
                answer = proxy.call("abci_query", path="/store/ledger/key", data=b"state".hex(), prove=True)
            except TallystickError:
                return False
            found.append(answer["response"])
            return True

        wait_until(verified, 30)
        height = int(found[0]["height"])
        block = chain.validators[0].application.book.reader.block(height)
        assert b64decode(found[0]["value"]) == block.state_root
        monkeypatch.setattr("tallystick.ledger.cometbft.application.value_of", lambda block, name: bytes(32))
        with pytest.raises(TallystickError, match="verify value proof"):
            proxy.call("abci_query", path="/store/ledger/key", data=b"state".hex(), prove=True)
    finally:
        process.terminate()
        process.wait(20)
        proxy.close()


def proto_messages(text: str) -> dict[str, dict[int, str]]:
    """Message → field number → name, of a proto file; those of a union count as the message's own."""
    found: dict[str, dict[int, str]] = {}
    plain = re.sub(r"//[^\n]*", "", text).replace("{}", "{\n}")
    for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", plain, re.S | re.M):
        numbers = re.findall(
            r"(?:repeated\s+)?[\w.]+\s+(\w+)\s*=\s*(\d+)\s*(?:\[|;)", re.sub(r"enum .*?\}", "", body, flags=re.S)
        )
        found[name] = {int(number): field for field, number in numbers}
    return found


def test_our_messages_are_those_of_the_module() -> None:
    folder = PROGRAM.parent / "proto" / "tendermint"
    if not folder.exists():
        pytest.skip("CometBFT is not built here: make engines")
    known = {
        **proto_messages((folder / "crypto" / "keys.proto").read_text()),
        **proto_messages((folder / "crypto" / "proof.proto").read_text()),
        **proto_messages((folder / "abci" / "types.proto").read_text()),
        "Timestamp": {1: "seconds", 2: "nanos"},
    }
    compared = 0
    for name, kind in vars(m).items():
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message:
            for number, field in kind.descriptors.items():
                assert known[name][number] == field.name, f"{name}.{field.name}"
                compared += 1
    assert compared > 100
    for number, (method, kind, answer) in m.METHODS.items():
        assert known["Request"][number] == method
        assert known["Response"][answer] == method
        assert kind.__name__ == "Request" + "".join(part.capitalize() for part in method.split("_"))
    assert known["Response"][m.EXCEPTION] == "exception"
