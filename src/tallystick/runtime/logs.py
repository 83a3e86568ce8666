"""Logs: lines for people, or JSON lines for machines by a switch; secrets in neither.

Values go in as named fields: `log.info("stored", extra={"fields": {"partition": 3}})`. Bytes are never
written, only their length, and a field whose name says that it is secret is blotted out whatever it holds;
that is the second line of defence, the first being not to log it.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

_NUMBER = re.compile(r"[0-9]+")
_SECRET = re.compile(r"secret|password|passphrase|private|seed|undo|(^|_)keys?$", re.IGNORECASE)


def configure_logs(*, json: bool = False, level: str = "info", stream: TextIO | None = None) -> None:
    """Send everything this process logs to `stream` (standard error), in one of the two forms."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_JsonLines() if json else _HumanLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    server = logging.getLogger("uvicorn.error")
    server.setLevel(logging.ERROR)  # below it strangers' nonsense fills the log
    server.addFilter(_is_no_cut_poll)


class Lasting:
    """Trouble that may last: the log has one line when it begins and one when it ends, however often it is met.

    `text` is what was said last, empty where all is well. Where only numbers change in it, or what stands behind its
    first semicolon, it is the same trouble.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log, self._what = log, what
        self.text = ""

    def tell(self, text: str) -> None:
        """Take what is the matter now, an empty text where nothing is."""
        before, self.text = self.text, text
        if _gist(before) != _gist(text):
            self._log.warning("%s: %s", self._what, text or "all is well again")


def _gist(text: str) -> str:
    return _NUMBER.sub("", text.partition(";")[0])


def _is_no_cut_poll(record: logging.LogRecord) -> bool:
    """Long polls that are cut when a server ends are no error."""
    return not record.getMessage().startswith("Cancel ")


def _presentable(name: str, value: Any) -> Any:
    if _SECRET.search(name):
        return "***"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return f"<{type(value).__name__}>"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    if not isinstance(fields, Mapping):
        return {}
    return {str(name): _presentable(str(name), value) for name, value in fields.items()}


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in _fields(record).items() if name not in _OWN},
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, option=orjson.OPT_NON_STR_KEYS).decode()


_OWN = frozenset({"time", "level", "logger", "message", "trace"})


class _HumanLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().isoformat(sep=" ", timespec="seconds")
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{time} {record.levelname.lower()} {record.getMessage()}{fields}"
        line = line.replace("\n", "\\n").replace("\r", "\\r")  # a peer's text forges no second line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
