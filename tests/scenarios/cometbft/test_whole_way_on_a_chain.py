"""The whole way of a record with a chain as the ledger: the same code, another URL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chain_world import QUICK, require_cometbft
from stack import CHEAP, PASSPHRASE, READ, WRITE, Stack, wait_until

from tallystick.client.subscribe import Received
from tallystick.errors import Refused
from tallystick.ledger.fsck import fsck
from tallystick.node.devchain import chain_url, create_validators, found_chain, validator_folders
from tallystick.node.instance import Folders, create_instance
from tallystick.node.settings import NodeSettings
from tallystick.node.validator import Validator
from tallystick.runtime.entropy import SystemEntropy
from tallystick.trust.trustfile import TrustFile

SCHEMA = "vin string, seq int64 not null, speed float32"


@contextmanager
def chain_of(folder: Path, count: int) -> Iterator[tuple[Stack, list[Validator]]]:
    """An instance in `folder` whose ledger is a chain of `count` validators; the node is not started yet."""
    program = require_cometbft()
    cards = create_validators(folder, count, SystemEntropy())
    now_ms = int(time.time() * 1000) - 1000
    url = chain_url(folder)
    keys = tuple(bytes.fromhex(card.note_key) for card in cards)
    create_instance(
        *(folder, "test", PASSPHRASE, NodeSettings(port=0, ledger=url), now_ms, SystemEntropy()),
        validators=keys,
        cost=CHEAP,
    )
    found_chain(folder, TrustFile.parse(Folders(folder).trust.read_text()), now_ms, QUICK)
    validators = [Validator(one, program) for one in validator_folders(folder)]
    try:
        for validator in validators:
            validator.start()
        yield Stack(folder, node={"ledger": url}), validators
    finally:
        for validator in validators:
            validator.stop()


def test_rows_arrive_proved_under_the_validators_checkpoints(tmp_path: Path) -> None:
    with chain_of(tmp_path, 4) as (prepared, validators):
        with prepared as stack:
            owner = stack.tenant("acme")
            token = stack.topic(owner, "brakes", SCHEMA, partitions=2)
            car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
            stack.grant(owner, token, car, WRITE)
            stack.grant(owner, token, reader, READ)
            publisher = car.publisher("brakes", acks="anchored", batch_rows_max=100)
            publisher.send([{"vin": f"V{n % 7}", "seq": n, "speed": n / 2} for n in range(500)])
            assert publisher.flush(60) == 0
            validators[3].pair.stop()  # one of four may be away
            publisher.send([{"vin": "V", "seq": 500 + n, "speed": 0.0} for n in range(100)])
            assert publisher.flush(60) == 0
            publisher.close()
            subscriber = reader.subscriber("brakes")
            received: list[Received] = []
            wait_until(lambda: received.extend(subscriber.poll(200)) or sum(r.batch.rows for r in received) >= 600)
            assert sorted(row["seq"] for one in received for row in one.to_pylist()) == list(range(600))
            assert subscriber.findings == []
            head = reader.view.refresh()
            assert head.height > 1
            stack.withdraw(owner, token, reader, READ)
            with pytest.raises(Refused):
                wait_until(lambda: not reader.subscriber("brakes").poll(1))
            trust = stack.node.trust
        for validator in validators:
            validator.stop()
        report = fsck(str(validators[0].folder / "ledger.sqlite"), trust)
        assert report.transactions > 5, "a validator's file is whole, by the same replay as the embedded ledger's"
