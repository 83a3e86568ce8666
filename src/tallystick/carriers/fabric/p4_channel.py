"""How a controller and a switch reach each other: loopback in the clear, mutual TLS everywhere else."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.carriers.fabric.p4_messages import grpc
from tallystick.errors import Misuse, Unavailable
from tallystick.runtime.address import is_loopback

MESSAGE_BYTES_MAX = 16 << 20
_OPTIONS = [("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), ("grpc.enable_http_proxy", 0)]


@dataclass(frozen=True, slots=True)
class SwitchTls:
    """PEM. Who shows a certificate under `roots` rules the switch, so they are the operator's alone."""

    key: bytes
    certificate: bytes
    roots: bytes


def check_loopback(address: str) -> None:
    """Raises `Misuse` for an address that others can reach."""
    if not (address.startswith("unix:") or is_loopback(address.rpartition(":")[0].strip("[]"))):
        raise Misuse(f"{address}: off loopback a switch speaks TLS alone", hint="give key, certificate and roots")


def listen(server: grpc.Server, address: str, tls: SwitchTls | None) -> int:
    """The port on which it listens. Raises `Misuse` for an address off loopback without TLS, else `Unavailable`."""
    try:
        if tls is None:
            check_loopback(address)
            return int(server.add_insecure_port(address))
        pairs = [(tls.key, tls.certificate)]
        return int(server.add_secure_port(address, grpc.ssl_server_credentials(pairs, tls.roots, True)))
    except RuntimeError as error:
        raise Unavailable(f"{address}: cannot listen there") from error


def open_channel(address: str, tls: SwitchTls | None) -> grpc.Channel:
    if tls is None:
        check_loopback(address)
        return grpc.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.certificate)
    return grpc.secure_channel(address, credentials, options=_OPTIONS)
