"""One folder is one identity: keys, trust file, certificates, accepted checkpoint, spool.

Made by `tally principal enrol` (client/enrol.py). Clients, Spark options and commands all name it the same way:
`--home`, `TALLY_HOME`. Secrets are files that only their owner may read; nothing else of them is ever printed.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.crypto import hpke
from tallystick.crypto.kdf import derive
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Misuse
from tallystick.trust.certificate import Certificate, Kind
from tallystick.trust.trustfile import TrustFile

FORMAT = "tallystick identity 1"
HOME_VARIABLE = "TALLY_HOME"
_KEYS, _FILE, _TRUST = "keys", "identity.json", "trust.json"
_KEY_BYTES = 64  # signing seed and sealing seed


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
    signing_key: SigningKey = field(repr=False)
    sealing_key: hpke.PrivateKey = field(repr=False)
    signing_seed: bytes = field(repr=False)

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
        return derive(self.signing_seed, "tallystick identifier secret 1")

    @property
    def spool_key(self) -> bytes:
        """Wraps lane keys in the spool."""
        return derive(self.signing_seed, "tallystick spool key 1")

    def check(self) -> None:
        """Raise `Misuse` or `Forged` unless keys, certificates and trust file fit together."""
        self.authority.verify(self.trust.root_verifier, instance=self.instance)
        self.certificate.verify_issued_by(self.authority)
        for node in self.nodes:
            node.verify(self.trust.root_verifier, instance=self.instance)
            if node.kind is not Kind.NODE:
                raise Misuse(f"{self.home}: a node's certificate is of another kind")
        if self.certificate.signing_key != self.signing_key.public.raw:
            raise Misuse(f"{self.home}: the certificate is for another key", hint="enrol again into a new folder")

    def save(self) -> None:
        """Write the folder; keys first, so that a half-written folder is never without them."""
        create_keys(self.home, self.signing_seed, self.sealing_key.encode())
        (self.home / _TRUST).write_text(self.trust.to_json())
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

    @classmethod
    def load(cls, home: str | Path | None = None) -> Identity:
        """The identity in `home`, or in the folder that `TALLY_HOME` names."""
        folder = find_home(home)
        if not (folder / _FILE).exists():
            raise Misuse(f"{folder}: no identity is here", hint="tally principal enrol makes one")
        data = json.loads((folder / _FILE).read_text())
        if data.get("format") != FORMAT:
            raise Misuse(f'{folder / _FILE}: format "{FORMAT}" expected, found {data.get("format")!r}')
        signing_seed, sealing_seed = read_keys(folder)
        identity = cls(
            home=folder,
            name=data["name"],
            certificate=Certificate.decode(bytes.fromhex(data["certificate"])),
            authority=Certificate.decode(bytes.fromhex(data["authority"]["certificate"])),
            nodes=tuple(Certificate.decode(bytes.fromhex(one)) for one in data["nodes"]["certificates"]),
            node_urls=tuple(data["nodes"]["urls"]),
            authority_url=data["authority"]["url"],
            trust=TrustFile.parse((folder / _TRUST).read_text()),
            signing_key=SigningKey.from_seed(signing_seed),
            sealing_key=hpke.PrivateKey.decode(sealing_seed),
            signing_seed=signing_seed,
        )
        identity.check()
        return identity


def find_home(home: str | Path | None) -> Path:
    """The folder meant by `--home`, or else by the environment."""
    named = home or os.environ.get(HOME_VARIABLE)
    if not named:
        raise Misuse("no identity folder is named", hint=f"use --home, or set {HOME_VARIABLE}")
    return Path(named)


def create_keys(home: Path, signing_seed: bytes, sealing_seed: bytes) -> None:
    """Write the two secrets, readable by their owner only; existing ones must be the same."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = home / _KEYS
    if path.exists():
        if path.read_bytes() != signing_seed + sealing_seed:
            raise Misuse(f"{home}: other keys are here already", hint="choose another folder")
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(signing_seed + sealing_seed)
        file.flush()
        os.fsync(file.fileno())


def read_keys(home: Path) -> tuple[bytes, bytes]:
    path = home / _KEYS
    if not path.exists():
        raise Misuse(f"{home}: its keys are missing", hint="restore the folder from a backup, or enrol anew")
    if path.stat().st_mode & 0o077:
        raise Misuse(f"{path}: others may read it", hint=f"chmod 600 {path}")
    data = path.read_bytes()
    if len(data) != _KEY_BYTES:
        raise Misuse(f"{path}: {_KEY_BYTES} bytes expected, found {len(data)}")
    return data[:32], data[32:]
