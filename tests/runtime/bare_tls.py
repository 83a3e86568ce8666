"""The client's half of a TLS 1.3 handshake, written out (RFC 8446): it shows whatever certificate it is given, and
signs with whatever key. OpenSSL itself refuses to show a certificate whose key it has not.
"""

from __future__ import annotations

import hmac
import os
import socket
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ALERT, HANDSHAKE, APPLICATION = 21, 22, 23
_ED25519, _X25519, _AES_128_GCM_SHA256 = b"\x08\x07", b"\x00\x1d", b"\x13\x01"


def _sized(data: bytes, n: int = 2) -> bytes:
    return len(data).to_bytes(n, "big") + data


def _message(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + _sized(body, 3)


def _expand(secret: bytes, label: str, context: bytes, n: int) -> bytes:
    info = n.to_bytes(2, "big") + _sized(b"tls13 " + label.encode(), 1) + _sized(context, 1)
    return hmac.digest(secret, info + b"\x01", "sha256")[:n]


class _Direction:
    """One traffic secret in use."""

    def __init__(self, secret: bytes) -> None:
        self._aead, self._iv = AESGCM(_expand(secret, "key", b"", 16)), _expand(secret, "iv", b"", 12)
        self._count = 0

    def _nonce(self) -> bytes:
        self._count += 1
        return (int.from_bytes(self._iv, "big") ^ (self._count - 1)).to_bytes(12, "big")

    def protect(self, kind: int, data: bytes) -> bytes:
        header = b"\x17\x03\x03" + (len(data) + 17).to_bytes(2, "big")
        return header + self._aead.encrypt(self._nonce(), data + bytes([kind]), header)

    def open(self, header: bytes, data: bytes) -> tuple[int, bytes]:
        inner = self._aead.decrypt(self._nonce(), data, header).rstrip(b"\0")
        return inner[-1], inner[:-1]


class BareTls:
    """A connection whose handshake is done, as far as the client can tell."""

    def __init__(self, port: int, certificate: bytes, key: Ed25519PrivateKey) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._said = b""  # the transcript
        ours = X25519PrivateKey.generate()
        self._hello(ours.public_key().public_bytes_raw())
        _, answer = self._record()
        self._said += answer
        shared = ours.exchange(X25519PublicKey.from_public_bytes(self._key_share(answer)))
        empty = sha256(b"").digest()
        early = hmac.digest(bytes(32), bytes(32), "sha256")
        secret = hmac.digest(_expand(early, "derived", empty, 32), shared, "sha256")
        client = self._derived(secret, "c hs traffic")
        self._out, self._in = _Direction(client), _Direction(self._derived(secret, "s hs traffic"))
        flight = b""
        while not self._is_whole(flight):
            flight += self.receive()[1]
        self._said += flight
        master = hmac.digest(_expand(secret, "derived", empty, 32), bytes(32), "sha256")
        traffic = [self._derived(master, f"{side} ap traffic") for side in "cs"]
        entry = _sized(certificate, 3) + _sized(b"")
        self._say(_message(11, b"\0" + _sized(entry, 3)))
        covered = b" " * 64 + b"TLS 1.3, client CertificateVerify\0" + sha256(self._said).digest()
        self._say(_message(15, _ED25519 + _sized(key.sign(covered))))
        finished = hmac.digest(_expand(client, "finished", b"", 32), sha256(self._said).digest(), "sha256")
        self._say(_message(20, finished))
        self._out, self._in = map(_Direction, traffic)

    def send(self, data: bytes) -> None:
        self._socket.sendall(self._out.protect(APPLICATION, data))

    def receive(self) -> tuple[int, bytes]:
        """Kind and content of the next record; (0, b"") when the connection has ended."""
        try:
            header, data = self._record()
        except ConnectionError:
            return 0, b""
        return self._in.open(header, data)

    def close(self) -> None:
        self._socket.close()

    def _hello(self, share: bytes) -> None:
        extensions = (
            (43, _sized(b"\x03\x04", 1)),
            (10, _sized(_X25519)),
            (13, _sized(_ED25519)),
            (51, _sized(_X25519 + _sized(share))),
        )
        listed = b"".join(kind.to_bytes(2, "big") + _sized(data) for kind, data in extensions)
        body = b"\x03\x03" + os.urandom(32) + _sized(b"", 1) + _sized(_AES_128_GCM_SHA256) + _sized(b"\0", 1)
        hello = _message(1, body + _sized(listed))
        self._said += hello
        self._socket.sendall(b"\x16\x03\x01" + _sized(hello))

    def _say(self, message: bytes) -> None:
        self._said += message
        self._socket.sendall(self._out.protect(HANDSHAKE, message))

    def _record(self) -> tuple[bytes, bytes]:
        header = self._exactly(5)
        while header[0] == 20:  # for old boxes on the way, and empty of meaning
            self._exactly(1)
            header = self._exactly(5)
        return header, self._exactly(int.from_bytes(header[3:], "big"))

    def _exactly(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            more = self._socket.recv(n - len(data))
            if not more:
                raise ConnectionError("ended")
            data += more
        return data

    def _derived(self, secret: bytes, label: str) -> bytes:
        return _expand(secret, label, sha256(self._said).digest(), 32)

    @staticmethod
    def _key_share(server_hello: bytes) -> bytes:
        at = 4 + 2 + 32
        at += 1 + server_hello[at] + 3 + 2  # session, cipher, compression, length of the extensions
        while server_hello[at : at + 2] != b"\x00\x33":
            at += 4 + int.from_bytes(server_hello[at + 2 : at + 4], "big")
        return server_hello[at + 8 : at + 40]

    @staticmethod
    def _is_whole(flight: bytes) -> bool:
        """Whether it ends with the server's Finished."""
        at = kind = 0
        while at < len(flight):
            kind, at = flight[at], at + 4 + int.from_bytes(flight[at + 1 : at + 4], "big")
        return at == len(flight) and kind == 20
