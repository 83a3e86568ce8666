"""One folder is one identity: keys, trust file, certificates, accepted checkpoint, spool.

Made by `tally principal enrol` (identity/enrol.py). Clients, Spark options and commands all name it the same way:
`--home`, `TALLY_HOME`, or the one that `tally use` chose for good, in this order. Secrets are files that only their
owner may read; nothing else of them is ever printed.

`keys` holds signing seed and sealing seed. Where the keys were replaced (identity/rekey.py) there follow the spool key,
which stays, and the public halves of earlier signing keys: a spool from before can still be read.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.crypto.symmetric import derive
from tallystick.errors import Forged, Misuse
from tallystick.runtime.sources import Entropy
from tallystick.trust.certificate import Certificate, SubjectKind
from tallystick.trust.trustfile import TrustFile

FORMAT = "tallystick identity 1"
HOME_VARIABLE = "TALLY_HOME"
_KEYS, _NEW_KEYS, _FILE, _TRUST = "keys", "keys.new", "identity.json", "trust.json"


@dataclass(frozen=True, repr=False)
class Keys:
    """What the file `keys` holds."""

    signing_seed: bytes
    sealing_seed: bytes
    spool_key: bytes = b""  # empty where it comes from the signing seed
    earlier: tuple[bytes, ...] = ()  # public halves of replaced signing keys, the newest first: of parcels in the spool

    def encode(self) -> bytes:
        return b"".join((self.signing_seed, self.sealing_seed, self.spool_key, *self.earlier))

    @classmethod
    def decode(cls, data: bytes) -> Keys | None:
        """None for what has not the length of keys."""
        parts = [data[at : at + 32] for at in range(0, len(data), 32)]
        if len(parts) < 2 or len(parts) == 3 or len(data) % 32:
            return None
        return cls(parts[0], parts[1], b"".join(parts[2:3]), tuple(parts[3:]))


@dataclass(frozen=True)
class Identity:
    home: Path
    name: str
    certificate: Certificate
    authority: Certificate
    nodes: tuple[Certificate, ...]
    node_urls: tuple[str, ...]
    authority_url: str
    trust: TrustFile
    keys: Keys = field(repr=False)

    @cached_property
    def signing_key(self) -> SigningKey:
        return SigningKey.from_seed(self.keys.signing_seed)

    @cached_property
    def sealing_key(self) -> hpke.PrivateKey:
        return hpke.PrivateKey.decode(self.keys.sealing_seed)

    @property
    def principal(self) -> bytes:
        return self.certificate.subject

    @property
    def tenant(self) -> bytes:
        return self.certificate.tenant

    @property
    def instance(self) -> bytes:
        return self.trust.instance

    @property
    def identifier_secret(self) -> bytes:
        """What parcel identifiers mix in (docs/formats/keys.md)."""
        return derive(self.keys.signing_seed, "tallystick identifier secret 1")

    @property
    def spool_key(self) -> bytes:
        """Wraps lane keys in the spool."""
        return self.keys.spool_key or derive(self.keys.signing_seed, "tallystick spool key 1")

    @property
    def own_keys(self) -> tuple[VerifyKey, ...]:
        """Every key that signed in this identity's name."""
        return (self.signing_key.public, *map(VerifyKey, self.keys.earlier))

    def check(self) -> None:
        """Raise `Misuse` or `Forged` unless keys, certificates and trust file fit together."""
        self.authority.verify(self.trust.root_verifier, instance=self.instance)
        self.certificate.verify_issued_by(self.authority)
        for node in self.nodes:
            node.verify(self.trust.root_verifier, instance=self.instance)
            if node.kind is not SubjectKind.NODE:
                raise Misuse(f"{self.home}: a node's certificate is of another kind")
        if self.certificate.signing_key != self.signing_key.public.raw:
            raise Misuse(f"{self.home}: the certificate is for another key", hint="enrol again into a new folder")

    def save(self) -> None:
        """Write the folder; keys first, so that a half-written folder is never without them."""
        create_keys(self.home, self.keys)
        self.write_file()

    def write_file(self) -> None:
        """Write everything but the keys."""
        self.write_trust()
        content = {
            "format": FORMAT,
            "name": self.name,
            "principal": self.principal.hex(),
            "certificate": self.certificate.encode().hex(),
            "authority": {"url": self.authority_url, "certificate": self.authority.encode().hex()},
            "nodes": {"urls": list(self.node_urls), "certificates": [node.encode().hex() for node in self.nodes]},
        }
        temporary = self.home / (_FILE + ".new")
        temporary.write_text(json.dumps(content, indent=1))
        temporary.replace(self.home / _FILE)

    def write_trust(self) -> None:
        temporary = self.home / (_TRUST + ".new")
        temporary.write_text(self.trust.to_json())
        temporary.replace(self.home / _TRUST)

    @classmethod
    def load(cls, home: str | Path | None = None) -> Identity:
        """The identity in `home`, or in the folder that `TALLY_HOME` names, or that `tally use` chose."""
        folder = find_home(home)
        if not (folder / _FILE).exists():
            raise Misuse(f"{folder}: no identity is here", hint="tally principal enrol makes one")
        data = json.loads((folder / _FILE).read_text())
        if data.get("format") != FORMAT:
            raise Misuse(f'{folder / _FILE}: format "{FORMAT}" expected, found {data.get("format")!r}')
        certificate = Certificate.decode(bytes.fromhex(data["certificate"]))
        identity = cls(
            home=folder,
            name=data["name"],
            certificate=certificate,
            authority=Certificate.decode(bytes.fromhex(data["authority"]["certificate"])),
            nodes=tuple(Certificate.decode(bytes.fromhex(one)) for one in data["nodes"]["certificates"]),
            node_urls=tuple(data["nodes"]["urls"]),
            authority_url=data["authority"]["url"],
            trust=TrustFile.parse((folder / _TRUST).read_text()),
            keys=_settle_keys(folder, certificate),
        )
        try:
            identity.check()
        except Forged as error:
            hint = f"put {_TRUST} of its own instance back: the operator has it, and whoever is enrolled there"
            raise Forged(f"{folder}: its {_TRUST} does not fit: {error}", reason=error.reason, hint=hint) from None
        return identity


def find_home(home: str | Path | None) -> Path:
    """The folder meant by `--home`, or else by the environment, or else by `tally use`."""
    named = home or os.environ.get(HOME_VARIABLE) or used_home()
    if not named:
        hint = f"use --home, or set {HOME_VARIABLE}, or choose one for good: tally use DIR"
        raise Misuse("no identity folder is named", hint=hint)
    return Path(named)


def used_home() -> Path | None:
    """The folder that `tally use` chose, if it chose one."""
    try:
        return Path(_used_file().read_text().strip() or ".") if _used_file().exists() else None
    except OSError as error:
        raise Misuse(f"{_used_file()}: {error.strerror}", hint="tally use DIR writes it anew") from error


def use_home(home: Path | None) -> None:
    """Let commands and clients without a home act as the identity in this folder from now on, or as none."""
    file = _used_file()
    if home is None:
        file.unlink(missing_ok=True)
        return
    if not (home / _FILE).exists():
        raise Misuse(f"{home}: no identity is here", hint="tally principal enrol makes one")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = file.with_suffix(".new")
        temporary.write_text(f"{home.resolve()}\n")
        temporary.replace(file)
    except OSError as error:
        raise Misuse(f"{file}: {error.strerror}", hint="set XDG_CONFIG_HOME to a folder of your own") from error


def _used_file() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "tallystick" / "home"


def create_keys(home: Path, keys: Keys, name: str = _KEYS) -> None:
    """Write the secrets, readable by their owner only; existing ones must be the same."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = home / name
    if path.exists():
        if path.read_bytes() != keys.encode():
            raise Misuse(f"{home}: other keys are here already", hint="choose another folder")
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(keys.encode())
        file.flush()
        os.fsync(file.fileno())


def read_keys(home: Path, name: str = _KEYS) -> Keys:
    path = home / name
    if not path.exists():
        raise Misuse(f"{home}: its keys are missing", hint="restore the folder from a backup, or enrol anew")
    if path.stat().st_mode & 0o077:
        raise Misuse(f"{path}: others may read it", hint=f"chmod 600 {path}")
    keys = Keys.decode(path.read_bytes())
    if keys is None:
        raise Misuse(f"{path}: 64 bytes, or 128 and more in steps of 32, expected; found {path.stat().st_size}")
    return keys


def draw_new_keys(identity: Identity, entropy: Entropy) -> Keys:
    """The keys that are to replace the identity's, durable beside them; those of an attempt that was cut short."""
    if not (identity.home / _NEW_KEYS).exists():
        earlier = tuple(key.raw for key in identity.own_keys)
        sealing = hpke.PrivateKey.generate(entropy.bytes(32)).encode()
        create_keys(identity.home, Keys(entropy.bytes(32), sealing, identity.spool_key, earlier), _NEW_KEYS)
    return read_keys(identity.home, _NEW_KEYS)


def _settle_keys(home: Path, certificate: Certificate) -> Keys:
    """The keys of the certificate; the new ones take their place if a replacement was cut short behind it."""
    new = home / _NEW_KEYS
    if new.exists():
        keys = read_keys(home, _NEW_KEYS)
        if SigningKey.from_seed(keys.signing_seed).public.raw == certificate.signing_key:
            new.replace(home / _KEYS)
            return keys
    return read_keys(home)


def first_trust_file(trust: TrustFile, given: Path | None) -> TrustFile:
    """The instance's first trust file, with which a replay begins: the one that the identity holds, or the `given`."""
    first = trust if given is None else TrustFile.parse(given.read_text(errors="replace"))
    if first.number != 1 or first.instance != trust.instance:
        hint = "name it with --genesis; the operator has it, and its hash is the instance"
        raise Misuse("a replay begins with the first trust file of the instance, this is another", hint=hint)
    return first
