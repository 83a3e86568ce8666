"""The process from which Spark forks its Python workers (`spark.python.daemon.module`).

It imports what a task needs and loads the compiled code before the first fork, so that a worker's first parcel costs
what its thousandth does. It holds no identity and no key: those are opened in the worker that needs them. Nothing here
may start a thread, since a fork would leave it behind.
"""

from __future__ import annotations

import gc
import sys

from pyspark.daemon import manager

_TASKS = "pyspark.worker"  # Spark starts one daemon for each module; the others run a moment on the driver


def warm() -> None:
    """Load what tasks use."""
    import pyarrow as pa
    import pyspark.sql.worker.plan_data_source_read
    import pyspark.worker  # noqa: F401

    import tallystick.pipeline.source  # noqa: F401
    from tallystick.record import warm as kernels
    from tallystick.record.batch import Batch
    from tallystick.record.codec import LZ4, PLANES, compress, decompress
    from tallystick.record.leaves import SALT_BYTES, leaf_root
    from tallystick.record.schema import Schema

    kernels.warm()
    schema = Schema.parse("n int64, text string")
    batch = Batch.of(schema, pa.RecordBatch.from_pylist([{"n": 1, "text": "a"}], schema=schema.arrow))
    leaf_root(batch, bytes(SALT_BYTES))
    for codec in (LZ4, PLANES):
        decompress(compress(bytes(64), codec), codec, 64)
    # A worker collects garbage after each task: without this it would walk over all that was just loaded.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == _TASKS:
        warm()
    manager()
