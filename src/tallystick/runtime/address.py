"""Where a node is reached and under which protection: addresses and TLS.

Off loopback everything runs inside TLS 1.3: signatures protect what is asked, TLS hides it and protects the
answer. Plain HTTP is for loopback; anywhere else it must be asked for by name (`insecure=True`).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Misuse


class Address(NamedTuple):
    """A node or authority: its URL without a path, its identifier, and the key under which its time counts."""

    url: str
    node: bytes
    key: VerifyKey | None = None


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a process listens, and under which protection."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any
    tls_files: tuple[str, str] = ("", "")  # certificate and key in PEM, needed off loopback
    insecure: bool = False  # plain HTTP off loopback, by name

    @property
    def tls(self) -> ssl.SSLContext | None:
        return server_tls(*self.tls_files) if self.tls_files[0] else None


class Endpoint(NamedTuple):
    """An address taken apart."""

    address: Address
    host: str
    port: int
    tls: bool
    authority: str  # as the Host header has it: lower case, default port left out


def parse_address(address: Address, *, insecure: bool = False) -> Endpoint:
    """Raises `Misuse` for a URL that is no bare http(s) address, or plain HTTP off loopback."""
    try:
        parts = urlsplit(address.url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Misuse(f"address {address.url!r}: not a URL") from error
    if parts.scheme not in ("http", "https") or not host or not host.isascii() or parts.username is not None:
        raise Misuse(f"address {address.url!r}: expected http(s)://host[:port]")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise Misuse(f"address {address.url!r}: expected no path, query or fragment")
    tls = parts.scheme == "https"
    if not tls:
        check_plain(host, insecure=insecure)
    default = 443 if tls else 80
    name = f"[{host}]" if ":" in host else host
    authority = name if port in (None, default) else f"{name}:{port}"
    return Endpoint(address, host, port or default, tls, authority)


def check_plain(host: str, *, insecure: bool) -> None:
    """Returns if HTTP without TLS may be spoken with or on `host`."""
    if not insecure and not is_loopback(host):
        raise Misuse(
            f"plain http on {host!r}: off loopback everything runs inside TLS 1.3",
            hint="use https, or say insecure=True if something else protects this network",
        )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def client_tls(ca_pem: str | None = None) -> ssl.SSLContext:
    """TLS 1.3 that believes the given CA certificates alone, or else the system's."""
    context = ssl.create_default_context(cadata=ca_pem)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def server_tls(certificate_file: str, key_file: str) -> ssl.SSLContext:
    """TLS 1.3 with this certificate chain. Raises `Misuse` if the files do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise Misuse(f"certificate {certificate_file!r} with key {key_file!r}: cannot be used: {error}") from error
    return context


def check_tls(context: ssl.SSLContext) -> ssl.SSLContext:
    """`context` itself. Raises `Misuse` if it would speak less than TLS 1.3."""
    if context.minimum_version != ssl.TLSVersion.TLSv1_3:
        raise Misuse(f"TLS context: expected at least TLS 1.3, found {context.minimum_version.name}")
    return context
