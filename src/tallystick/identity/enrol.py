"""Enrolling: an invitation becomes an identity folder.

Keys are drawn and written first; the authority sees public halves and proofs of possession only. What comes back is
checked against the trust file, or its hash, that came with the invitation: nothing else is believed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tallystick.authority.client import OverHttp
from tallystick.authority.client import enrol as ask
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Unavailable, name_cause
from tallystick.identity.folder import Identity, Keys, create_keys, read_keys
from tallystick.identity.invitation import Invitation
from tallystick.identity.nodes import ask_nodes
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.sources import Clock, Entropy
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
    """Enrol under an invitation's code and a trust file that one has already."""
    invitation = Invitation.of(invite, trust, authority_url, node_urls)

    def check(newest: TrustFile) -> None:
        if newest.number == trust.number and newest.content != trust.content:
            raise Forged("enrolment: the authority has another trust file")
        if newest.number > trust.number:
            trust.check_successor(newest)

    return enrol_invited(home, name, invitation, clock=clock, entropy=entropy, insecure=insecure, check_trust=check)


def enrol_invited(
    home: Path,
    name: str,
    invitation: Invitation,
    *,
    clock: Clock,
    entropy: Entropy,
    insecure: bool = False,
    check_trust: Callable[[TrustFile], None] | None = None,
) -> Identity:
    """Enrol under an invitation, which names the trust file by its hash, unless `check_trust` judges it otherwise.

    The folder may hold keys of an attempt that was cut short.
    """
    if not (home / "keys").exists():
        create_keys(home, Keys(entropy.bytes(32), hpke.PrivateKey.generate(entropy.bytes(32)).encode()))
    keys = read_keys(home)
    key, sealing = SigningKey.from_seed(keys.signing_seed), hpke.PrivateKey.decode(keys.sealing_seed)
    with HttpClient([Address(invitation.authority_url, bytes(16))], None, clock, entropy, insecure=insecure) as http:
        try:
            enrolled = ask(OverHttp(http), invitation.instance, invitation.code, name, key, sealing)
        except Unavailable as error:
            name_cause(error, http.trouble("authority"))
            raise
    newest = TrustFile.parse(enrolled.trust)
    (check_trust or invitation.check_trust)(newest)
    nodes = tuple(Certificate.decode(node) for node in enrolled.nodes)
    if len(nodes) > 1:
        nodes = ask_nodes(invitation.node_urls, nodes, newest, clock, entropy, insecure)
    identity = Identity(
        home=home,
        name=name,
        certificate=Certificate.decode(enrolled.certificate),
        authority=Certificate.decode(enrolled.authority),
        nodes=nodes,
        node_urls=invitation.node_urls,
        authority_url=invitation.authority_url,
        trust=newest,
        keys=keys,
    )
    identity.check()
    identity.save()
    return identity
