"""An instance without folders: root, trust file, node and authority, all from a seed and all in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tallystick.authority.authority import Authority
from tallystick.authority.core import AuthorityKeys, Core
from tallystick.authority.ledger_view import LedgerClient, LedgerView
from tallystick.authority.master import MasterKey
from tallystick.authority.settings import AuthorityLimits, AuthoritySettings
from tallystick.authority.store import AuthorityStore
from tallystick.crypto import hpke
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.node.instance import NodeKeys
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import Clock, Entropy, SeededEntropy
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.trustfile import TrustFile

_YEARS_MS = 10 * 365 * 86_400_000


@dataclass(frozen=True)
class Instance:
    trust: TrustFile
    node_keys: NodeKeys
    authority_certificate: Certificate
    authority_key: SigningKey

    @classmethod
    @cache  # it never differs, and its root's keys and signatures take their time
    def create(cls, now_ms: int) -> Instance:
        """The same instance every time; what varies with the seed is what happens in it."""
        entropy = SeededEntropy("instance")
        root = RootKey.from_seed(entropy.bytes(32))
        node, ledger, authority = (SigningKey.from_seed(entropy.bytes(32)) for _ in range(3))
        sealing = hpke.PrivateKey.generate(entropy.bytes(32))
        trust = TrustFile(1, b"", "sim", (root.public.raw,), 1, (ledger.public.raw,), 1, (), 0).sign(root)

        def certify(kind: SubjectKind, key: SigningKey, public: bytes) -> Certificate:
            subject = subject_id(trust.instance, key.public.raw)
            times = (now_ms - 60_000, now_ms + _YEARS_MS)
            unsigned = Certificate(trust.instance, kind, subject, ALL_TENANTS, key.public.raw, public, *times, ROOT_ID)
            return unsigned.sign(trust.root_signer(root))

        return cls(
            trust,
            NodeKeys(node, ledger, certify(SubjectKind.NODE, node, b"")),
            certify(SubjectKind.AUTHORITY, authority, sealing.public.encode()),
            authority,
        )

    def authority(self, ledger: LedgerClient, clock: Clock, entropy: Entropy, settings: AuthoritySettings) -> Authority:
        """The authority in this process, its store in memory: its own crashes have tests of their own."""
        memory, store = CheckpointMemory(self.trust, SeededDisk(0)), AuthorityStore(":memory:")
        with store.transaction():
            store.set_meta("founding", b"\x01")  # so that it brings the contracts of this release into force
        core = Core(
            AuthorityKeys(self.authority_certificate, self.authority_key, MasterKey(entropy.bytes(32))),
            store,
            LedgerView(ledger, memory, None),
            clock,
            entropy,
            settings,
            AuthorityLimits(),
        )
        return Authority(core, Path("authority"))
