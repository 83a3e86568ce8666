"""The parameters of a request: each once, each of its type."""

from __future__ import annotations

from urllib.parse import parse_qsl

from tallystick.errors import Malformed, Refused


class Words:
    """A query's, by name."""

    def __init__(self, text: str) -> None:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=32)
        self._values = dict(pairs)
        if len(self._values) != len(pairs):
            raise Malformed("query: a parameter appears twice")

    def number(self, name: str, default: int | None = None) -> int:
        text = self._values.get(name)
        if text is None:
            if default is None:
                raise Malformed(f"query: {name} is missing")
            return default
        if not text.isdigit() or len(text) > 19:
            raise Malformed(f"query: {name} is not a number")
        return int(text)

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if name in self._values else None

    def octets(self, name: str, length: int | None = None) -> bytes:
        return octets(self._values.get(name, ""), length)

    def optional_octets(self, name: str, length: int) -> bytes | None:
        return self.octets(name, length) if name in self._values else None


def octets(text: str, length: int | None) -> bytes:
    """Bytes from hexadecimal digits, so many if a length is given."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise Malformed("request: expected hexadecimal digits") from None
    if (length is not None and len(data) != length) or not data or len(data) > 512:
        raise Refused(f"request: expected {length} bytes in hexadecimal", reason="malformed")
    return data
