from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import orjson
import pytest

from tallystick.runtime.logs import configure_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


FIELDS = {
    "partition": 3,
    "token": "ab12",
    "count": None,
    "master_key": "hunter2",
    "Passphrase": "hunter2",
    "undo": b"hunter2",
    "body": b"hunter2",
    "what": ["hunter2"],
    "level": "forged",
}


def test_json_lines_hold_fields_and_no_secrets() -> None:
    stream = io.StringIO()
    configure_logs(json=True, stream=stream)
    logging.getLogger("tallystick.x").info("stored %d", 7, extra={"fields": FIELDS})
    logging.getLogger("tallystick.x").debug("not shown")
    (line,) = stream.getvalue().splitlines()
    entry = orjson.loads(line)
    assert (entry["message"], entry["level"], entry["logger"]) == ("stored 7", "info", "tallystick.x")
    assert (entry["partition"], entry["token"], entry["count"]) == (3, "ab12", None)
    assert (entry["master_key"], entry["body"], entry["what"]) == ("***", "<7 bytes>", "<list>")
    assert entry["time"].endswith("+00:00")
    assert "hunter2" not in line


def test_human_lines_are_one_line_each() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream)
    fields = {**FIELDS, "path": "/x\n2026-01-01 info forged"}
    logging.getLogger("tallystick.x").warning("refused\r\nforged", extra={"fields": fields})
    (line,) = stream.getvalue().splitlines()
    assert " warning refused\\r\\nforged partition=3 token=ab12 " in line
    assert "hunter2" not in line


def test_faults_keep_their_trace() -> None:
    for as_json in (False, True):
        stream = io.StringIO()
        configure_logs(json=as_json, stream=stream)
        try:
            raise ZeroDivisionError("by zero")
        except ZeroDivisionError:
            logging.getLogger("tallystick.x").exception("fault")
        assert "ZeroDivisionError: by zero" in stream.getvalue()
        assert not as_json or len(stream.getvalue().splitlines()) == 1
