"""Enrolling: an invitation becomes an identity folder.

Keys are drawn and written first; the authority sees public halves and proofs of possession only. What comes back is
checked against the trust file that came with the invitation: nothing else is believed.
"""

from __future__ import annotations

from pathlib import Path

from tallystick.authority.client import HttpEnroller
from tallystick.authority.client import enrol as ask
from tallystick.client.identity import Identity, create_keys, read_keys
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.clock import Clock
from tallystick.runtime.entropy import Entropy
from tallystick.trust.certificate import Certificate
from tallystick.trust.trustfile import TrustFile


def enrol(
    home: Path,
    name: str,
    invite: str,
    *,
    trust: TrustFile,
    authority_url: str,
    node_urls: tuple[str, ...],
    clock: Clock,
    entropy: Entropy,
    insecure: bool = False,
) -> Identity:
    """Enrol under an invitation; the folder may hold keys of an attempt that was cut short."""
    if not (home / "keys").exists():
        create_keys(home, entropy.bytes(32), hpke.PrivateKey.generate(entropy.bytes(32)).encode())
    signing_seed, sealing_seed = read_keys(home)
    key, sealing = SigningKey.from_seed(signing_seed), hpke.PrivateKey.decode(sealing_seed)
    with HttpClient([Address(authority_url, bytes(16))], None, clock, entropy, insecure=insecure) as http:
        enrolled = ask(HttpEnroller(http), trust.instance, invite, name, key, sealing)
    newest = TrustFile.parse(enrolled.trust)
    if newest.number == trust.number and newest.content != trust.content:
        raise Forged("enrolment: the authority has another trust file")
    if newest.number > trust.number:
        trust.check_successor(newest)
    identity = Identity(
        home=home,
        name=name,
        certificate=Certificate.decode(enrolled.certificate),
        authority=Certificate.decode(enrolled.authority),
        nodes=tuple(Certificate.decode(node) for node in enrolled.nodes),
        node_urls=node_urls,
        authority_url=authority_url,
        trust=newest,
        signing_key=key,
        sealing_key=sealing,
        signing_seed=signing_seed,
    )
    identity.check()
    identity.save()
    return identity
