"""A principal's new keys: the holder of the old one asks, the identifier stays.

Threat: another's key under one's own name, or a sealing key that one cannot open. As when enrolling, the new signing
key signs the request and the new sealing key opens a challenge; the challenge is a function of principal and keys, so
nothing is kept between the two requests. Threat: the thief of the old key. The certificate that replaces the old one
ends its key at the height of its entry: what it signed below counts for ever, what comes later is refused. Permits name
a key, so they end with it, and topics that the principal read begin a new epoch: what a thief copied opens nothing
newer. Left out: a thief who asks first. He has the key, and the tenant's owner has the revocation.

An answer may be lost when the ledger has the new key already: the same request, signed by the new key, is answered with
the certificate.
"""

from __future__ import annotations

from hmac import compare_digest

from tallystick.authority.answers import Caller
from tallystick.authority.core import Core
from tallystick.authority.enrolment import Enrolment
from tallystick.authority.possession import REKEY_CONTEXT, rekey_challenge_info, rekey_statement
from tallystick.authority.subjects import Subjects
from tallystick.crypto import hpke
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.identity import KEYS


class Rekeying:
    def __init__(self, core: Core, subjects: Subjects, enrolment: Enrolment) -> None:
        self._core, self._subjects, self._enrolment = core, subjects, enrolment

    def begin(self, caller: Caller, signing_key: bytes, sealing_key: bytes, signature: bytes) -> bytes | None:
        """The challenge, sealed to the new sealing key; None where the caller has these keys already."""
        core = self._core
        certificate = self._subjects.require_caller(caller)
        if (certificate.signing_key, certificate.sealing_key) == (signing_key, sealing_key):
            return None
        statement = rekey_statement(core.instance, caller.principal, signing_key, sealing_key)
        VerifyKey(signing_key).verify(REKEY_CONTEXT, signature, statement)
        public = hpke.PublicKey.decode(sealing_key)
        challenge = core.master.rekey_challenge(caller.principal, signing_key, sealing_key)
        return hpke.seal(public, challenge, rekey_challenge_info(core.instance, caller.principal))

    def prepare(self, caller: Caller, signing_key: bytes, sealing_key: bytes, challenge: bytes) -> int:
        """Check the opened challenge and queue the certificate. Returns the outbox place."""
        core = self._core
        expected = core.master.rekey_challenge(caller.principal, signing_key, sealing_key)
        if not compare_digest(challenge, expected):
            raise Forged("rekey: the challenge was not opened with the new sealing key")
        old = self._subjects.require_caller(caller)
        if core.ledger.raw(KEYS(signing_key)) is not None:
            raise Refused("rekey: the key serves or served an identity already", reason="key-used", hint="draw another")
        with core.store.transaction():
            return core.queue(
                [entries.replace(self._enrolment.certify(old.subject, old.tenant, signing_key, sealing_key))]
            )

    def finish(self, caller: Caller, signing_key: bytes) -> bytes:
        """The new certificate, once the ledger has it."""
        certificate = self._subjects.find(caller.principal)
        if certificate is None or certificate.signing_key != signing_key:
            raise Unavailable("the ledger has not published the certificate yet", retry_after_s=1.0)
        return certificate.encode()
