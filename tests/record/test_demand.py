"""Compiled code is loaded when there is much to do, and what was done before is the same."""

from __future__ import annotations

import subprocess
import sys
import threading

from stack import wait_until

from tallystick.kernels.demand import OnDemand


def test_it_is_loaded_once_when_the_work_is_enough() -> None:
    loads: list[int] = []
    lazy = OnDemand(lambda: loads.append(1) or "compiled", enough=10)
    assert [lazy.after(work) for work in (4, 5, 0)] == [None] * 3
    assert [lazy.after(work) for work in (1, 0, 7)] == ["compiled"] * 3
    assert loads == [1]


def test_it_is_loaded_when_asked_for_and_then_used_for_the_least_work() -> None:
    lazy = OnDemand(lambda: "compiled", enough=10)
    assert lazy.after(1) is None
    assert lazy.now() == lazy.after(0) == "compiled"


def test_a_thread_loads_it_and_until_then_everybody_goes_on_without() -> None:
    go = threading.Event()
    lazy = OnDemand(lambda: go.wait(60) and "compiled", enough=10)
    assert [lazy.soon(work) for work in (9, 1, 1)] == [None] * 3
    go.set()
    wait_until(lambda: lazy.soon(1) == "compiled")
    assert lazy.now() == lazy.after(0) == "compiled"


def test_few_rows_need_no_numba_and_many_give_the_same() -> None:
    script = """
import sys
from tallystick.record.batch import Batch, to_message
from tallystick.record.codec import PLANES, compress, decompress
from tallystick.record.gather import to_batches
from tallystick.record.leaves import leaf_root
from tallystick.record.planes import regions_of
from tallystick.record.schema import Schema

schema = Schema.parse("vin string, seq int64")

def pack(rows):
    batch = Batch.of(schema, to_batches([{"vin": f"V{n}", "seq": n} for n in range(rows)], schema.arrow))
    message = to_message(batch.data)
    packed = bytes(compress(message, PLANES, regions_of(memoryview(message), schema)))
    assert bytes(decompress(packed, PLANES, message.size)) == bytes(message)
    return packed, leaf_root(batch, bytes(16 * rows))

few = pack(10)
assert "numba" not in sys.modules
assert "pandas" not in sys.modules  # Arrow would import it to see whether a list is a Series
pack(100_000)
assert "numba" in sys.modules
assert pack(10) == few
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
