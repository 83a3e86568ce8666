"""An instance on disk: `tally init` makes one folder with everything, each part in its own.

    <folder>/root.key    the hybrid root key, under the passphrase; needed again only for new certificates: take it away
    <folder>/authority/  master key under the passphrase, store
    <folder>/node/       node key, ledger key, settings, log, ledger
    <folder>/trust.json  what is handed out

The node's folder holds no key that opens anything; the authority's never leaves its own.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO

from tallystick.crypto.passphrase import Cost, lock_secret, unlock_secret
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.errors import Misuse, Unavailable
from tallystick.node.settings import NodeSettings, write_settings
from tallystick.runtime.sources import Entropy
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.trustfile import TrustFile

PASSPHRASE_VARIABLE, PASSPHRASE_FILE_VARIABLE = "TALLY_PASSPHRASE", "TALLY_PASSPHRASE_FILE"
CERTIFICATE_YEARS = 10
_YEAR_MS = 365 * 86_400_000
_ADDRESS_FILE, _ADDRESS_FORMAT = "address.json", "tallystick address 1"


class Folders:
    """Where the parts of the instance in `root` lie."""

    def __init__(self, root: Path) -> None:
        self.root, self.root_key, self.passphrase = root, root / "root.key", root / "passphrase"
        self.authority, self.node, self.trust = root / "authority", root / "node", root / "trust.json"


@dataclass(frozen=True)
class NodeKeys:
    """What a node's folder holds of keys: its own, the ledger's, and the certificate of its own."""

    key: SigningKey
    ledger_key: SigningKey
    certificate: Certificate


def create_instance(
    folder: Path,
    name: str,
    passphrase: bytes,
    settings: NodeSettings,
    now_ms: int,
    entropy: Entropy,
    *,
    witnesses: tuple[str, ...] = (),
    quorum: int = 0,
    validators: tuple[bytes, ...] = (),
    cost: Cost = Cost(),
) -> TrustFile:
    """Make an instance: root, trust file, authority, node. Nothing that exists is overwritten.

    `validators` are the note keys of a chain, more than two thirds of which sign its checkpoints; without them the
    node's own ledger key does.
    """
    from tallystick.authority.authority import create, install  # a node opens its keys by this module, and needs none

    folders = Folders(folder)
    if folders.trust.exists():
        raise Misuse(f"{folder}: an instance is here already", hint="choose another folder, or tally up")
    root_seed, node_seed, ledger_seed = entropy.bytes(32), entropy.bytes(32), entropy.bytes(32)
    root = RootKey.from_seed(root_seed)
    trust = TrustFile(
        number=1,
        first=b"",
        name=name,
        roots=(root.public.raw,),
        threshold=1,
        ledger_keys=validators or (SigningKey.from_seed(ledger_seed).public.raw,),
        ledger_threshold=2 * len(validators) // 3 + 1,
        witnesses=witnesses,
        quorum=quorum,
    ).sign(root)
    write_secret(folders.root_key, lock_secret(root_seed, passphrase, entropy.bytes(32), cost))
    request = create(folders.authority, passphrase, entropy, cost)
    unsigned = _certificate(trust, SubjectKind.AUTHORITY, request.signing_key, request.sealing_key, now_ms)
    authority = unsigned.sign(trust.root_signer(root))
    install(folders.authority, authority, trust, founding=True)
    write_secret(folders.node / "ledger.key", ledger_seed)
    _write_node(folders.node, trust, root, node_seed, settings, authority, now_ms)
    folders.trust.write_text(trust.to_json())  # last: its presence says that the instance is whole
    return trust


def create_node(
    folder: Path, target: Path, passphrase: bytes, settings: NodeSettings, now_ms: int, entropy: Entropy
) -> Certificate:
    """One more node of the instance in `folder`, in `target`, as `tally up --node-only` runs it: another gateway, which
    shares carrier and ledger with the others."""
    made, folders = Folders(target), Folders(folder)
    if made.node.exists():
        raise Misuse(f"{target}: a node is here already", hint="choose another folder")
    trust = TrustFile.parse(folders.trust.read_text())
    root = open_root(folder, passphrase)
    authority = Certificate.decode((folders.node / "authority.certificate").read_bytes())
    write_secret(made.node / "ledger.key", entropy.bytes(32))  # signs nothing: the ledger is elsewhere
    certificate = _write_node(made.node, trust, root, entropy.bytes(32), settings, authority, now_ms)
    made.trust.write_text(trust.to_json())
    return certificate


def _write_node(
    folder: Path,
    trust: TrustFile,
    root: RootKey,
    seed: bytes,
    settings: NodeSettings,
    authority: Certificate,
    now_ms: int,
) -> Certificate:
    public = SigningKey.from_seed(seed).public.raw
    node = _certificate(trust, SubjectKind.NODE, public, b"", now_ms).sign(trust.root_signer(root))
    write_secret(folder / "key", seed)
    (folder / "certificate").write_bytes(node.encode())
    (folder / "authority.certificate").write_bytes(authority.encode())  # the node enrols it on the ledger
    write_settings(folder, settings)
    (folder / "trust.json").write_text(trust.to_json())
    return node


def open_node_keys(folder: Path, trust: TrustFile) -> NodeKeys:
    certificate = Certificate.decode((folder / "certificate").read_bytes())
    certificate.verify(trust.root_verifier, instance=trust.instance)
    key = SigningKey.from_seed(read_secret(folder / "key"))
    if certificate.signing_key != key.public.raw or certificate.kind is not SubjectKind.NODE:
        raise Misuse(f"{folder}: the certificate is for another key")
    return NodeKeys(key, SigningKey.from_seed(read_secret(folder / "ledger.key")), certificate)


def open_root(folder: Path, passphrase: bytes) -> RootKey:
    """The root key, for what only the root may sign."""
    path = Folders(folder).root_key
    if not path.exists():
        raise Misuse(f"{path}: the root key is not here", hint="bring it back from where it is kept")
    return RootKey.from_seed(unlock_secret(path.read_bytes(), passphrase))


def claim(folder: Path) -> IO[str]:
    """One process a folder: the lock goes with the process."""
    lock = (folder / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        raise Unavailable(
            f"{folder}: another process serves this folder" + (f", number {holder}" if holder else ""),
            hint="use the one that runs, or end it first; another instance needs a folder of its own (tally init)",
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


@dataclass(frozen=True)
class Listening:
    """Where a process of an instance listens now, for commands of the same machine; nothing of it is secret."""

    url: str
    certificate: Certificate
    engines: Mapping[str, str] = field(default_factory=dict)  # of a node: `ledger`, `carrier`, `kafka_settings`


def write_address(
    folder: Path, url: str, certificate: Certificate, engines: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Called when the socket is bound, so that port 0, a port of the command line, and the engines that it names are
    known to commands as well."""
    content = {"format": _ADDRESS_FORMAT, "url": url, "certificate": certificate.encode().hex(), "engines": {**engines}}
    temporary = folder / (_ADDRESS_FILE + ".new")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(folder / _ADDRESS_FILE)


def read_address(folder: Path) -> Listening:
    """Where the process of `folder` listens, or listened last."""
    path = folder / _ADDRESS_FILE
    if not path.exists():
        raise Misuse(f"{folder}: nothing was ever started here", hint="tally up starts node and authority")
    data = json.loads(path.read_text())
    if data.get("format") != _ADDRESS_FORMAT:
        raise Misuse(f'{path}: format "{_ADDRESS_FORMAT}" expected, found {data.get("format")!r}')
    return Listening(data["url"], Certificate.decode(bytes.fromhex(data["certificate"])), data.get("engines", {}))


def find_passphrase(folder: Path) -> bytes:
    """From the environment, a file that it names, or the file that `tally init` wrote."""
    if text := os.environ.get(PASSPHRASE_VARIABLE):
        return text.encode()
    named = os.environ.get(PASSPHRASE_FILE_VARIABLE)
    path = Path(named) if named else Folders(folder).passphrase
    if not path.exists():
        hint = f"set {PASSPHRASE_VARIABLE} or {PASSPHRASE_FILE_VARIABLE}"
        raise Misuse(f"no passphrase: {path} does not exist", hint=hint)
    return path.read_bytes().strip()


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, and sync it; never over another."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_secret(path: Path) -> bytes:
    if not path.exists():
        raise Misuse(f"{path}: missing", hint="restore it from a backup")
    if path.stat().st_mode & 0o077:
        raise Misuse(f"{path}: others may read it", hint=f"chmod 600 {path}")
    return path.read_bytes()


def _certificate(trust: TrustFile, kind: SubjectKind, signing: bytes, sealing: bytes, now_ms: int) -> Certificate:
    return Certificate(
        instance=trust.instance,
        kind=kind,
        subject=subject_id(trust.instance, signing),
        tenant=ALL_TENANTS,
        signing_key=signing,
        sealing_key=sealing,
        not_before_ms=now_ms - 60_000,
        not_after_ms=now_ms + CERTIFICATE_YEARS * _YEAR_MS,
        issuer=ROOT_ID,
    )
