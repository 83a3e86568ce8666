"""New keys for an identity: the principal stays, its certificate and keys are replaced.

The folder is never without keys that count. In order: (1) the new keys are written beside the old ones; (2) the
authority, asked by the old key, puts the certificate on the ledger, and from that block on the old key signs nothing;
(3) the certificate is written; (4) the new keys take the place of the old. Cut short before (2), nothing happened. Cut
short behind it, the old key is refused, so the same request goes out under the new one and brings the certificate.
Behind (3), loading the identity does (4).

Permits end with the key, so publishers and subscribers of this identity are started again; a publisher seals what waits
in its spool anew, under the new key.
"""

from __future__ import annotations

from dataclasses import replace

from tallystick.authority.client import AuthorityClient, Holder, OverHttp
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.identity.folder import Identity, Keys, draw_new_keys
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.http1 import UNAUTHENTICATED, RefusedByPeer
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.certificate import Certificate


def rekey(identity: Identity, *, clock: Clock, entropy: Entropy, insecure: bool = False) -> Identity:
    """The identity under new keys, its folder rewritten. After `Refused` or `Unavailable` it is as it was."""
    keys = draw_new_keys(identity, entropy)
    try:
        certificate = _ask(identity, identity.signing_key, keys, clock, entropy, insecure)
    except RefusedByPeer as refusal:
        if refusal.reason != UNAUTHENTICATED:
            raise
        certificate = _ask(identity, SigningKey.from_seed(keys.signing_seed), keys, clock, entropy, insecure)
    replace(identity, certificate=certificate).write_file()
    return Identity.load(identity.home)


def _ask(
    identity: Identity, signer: SigningKey, keys: Keys, clock: Clock, entropy: Entropy, insecure: bool
) -> Certificate:
    authority = identity.authority
    address = Address(identity.authority_url, authority.subject, authority.verify_key)
    holder = Holder(identity.instance, identity.principal, signer, identity.sealing_key, identity.tenant)
    with HttpClient([address], RequestSigner(identity.principal, signer), clock, entropy, insecure=insecure) as http:
        client = AuthorityClient(OverHttp(http), authority, holder, entropy)
        return client.rekey(SigningKey.from_seed(keys.signing_seed), hpke.PrivateKey.decode(keys.sealing_seed))
