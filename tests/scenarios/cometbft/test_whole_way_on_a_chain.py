"""The whole way of a record with a chain as the ledger: the same code, another URL."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from chain_stack import chain_of
from chain_world import require_cometbft
from console_stack import way
from stack import READ, WRITE, wait_until

from tallystick.client.subscribe import Received
from tallystick.console.mirror import Mirror
from tallystick.errors import Refused
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.fsck import fsck
from tallystick.node.validator import Validator

SCHEMA = "vin string, seq int64 not null, speed float32"


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
            assert "3 of 4 validators signed this history, 3 must: " in head.vouched_by(reader.memory.trust)
            with closing(Mirror(tmp_path / "mirror", reader.identity.trust, lambda: 0)) as mirror:  # of a console
                assert mirror.follow(way(reader))
                assert mirror.at.head is not None
                assert mirror.at.head.height >= head.height
                assert sum(row.size for _, row in mirror.scan(ANCHORS, token)) >= 6
            stack.withdraw(owner, token, reader, READ)
            with pytest.raises(Refused):
                wait_until(lambda: not reader.subscriber("brakes").poll(1))
            trust = stack.node.trust
            validators[2].stop()  # two of four may not, and whoever asks is told so
            wait_until(lambda: stack.node.trouble().startswith("chain halted: no block since "))
            assert reader.trouble().startswith("chain halted: ")
            validators[2] = Validator(validators[2].folder, require_cometbft())
            validators[2].start()
            wait_until(lambda: stack.node.trouble() == "")
        for validator in validators:
            validator.stop()
        report = fsck(str(validators[0].folder / "ledger.sqlite"), trust)
        assert report.transactions > 5, "a validator's file is whole, by the same replay as the embedded ledger's"
