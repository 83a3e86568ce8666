"""Writes mesh_keys.json beside itself, with PYTHONPATH=tests:tests/mesh.

What docs/formats/mesh.md has of asking the authority: its word on its key for the mesh, a member's certificate, a
request, an answer and an update. Sealing is random inside the library, so a second run writes other sealed bytes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from makers import seed, token
from mesh_world import AUTHORITY, EPOCH, LIMITS, NOW_MS, mesh_key, publisher

from tallystick.authority.mesh_messages import (
    MeshAnswer,
    MeshRefusal,
    MeshRequest,
    MeshUpdate,
    MeshUpdatesPage,
    MeshUpdatesRequest,
)
from tallystick.crypto import hpke
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.signatures import SigningKey
from tallystick.trust.certificate import ROOT_ID, Certificate, SubjectKind
from tallystick.trust.mesh import MeshAuthority, certify_member

PATH = Path(__file__).parent / "mesh_keys.json"
INSTANCE, UNTIL_MS = seed("instance"), (EPOCH + 2) * LIMITS.epoch_ms
SIGNING = SigningKey.from_seed(seed("authority"))
SEALING, OWN = (hpke.PrivateKey.generate(seed(name)) for name in ("authority's sealing key", "member's sealing key"))
LASTING = ExchangeKey(seed("lasting key"))


def certificate(kind: SubjectKind, name: str, signing: bytes, sealing: hpke.PrivateKey) -> Certificate:
    times = (NOW_MS, NOW_MS + LIMITS.epoch_ms)
    return Certificate(INSTANCE, kind, seed(name)[:16], bytes(16), signing, sealing.public.encode(), *times, ROOT_ID)


ISSUER = certificate(SubjectKind.AUTHORITY, "the authority", SIGNING.public.raw, SEALING)
MEMBER = certificate(SubjectKind.PRINCIPAL, "the member", seed("a key"), OWN)
WORD = MeshAuthority(INSTANCE, ISSUER.subject, AUTHORITY.public.raw, LIMITS.epoch_ms, 3_600_000).sign(SIGNING)


def vectors() -> dict[str, Any]:
    request = MeshRequest(token("brakes"), 2, 2, LASTING.public)
    terms = MeshRequest(token("brakes"), terms=(1, 20))
    member = certify_member(LASTING.public, UNTIL_MS, AUTHORITY)
    secrets = (mesh_key().secret, mesh_key(epoch=EPOCH + 1).secret)
    leaves = tuple((by.seed, by.certificate) for by in (publisher(), publisher(epoch=EPOCH + 1)))
    answer = MeshAnswer(WORD.encode(), NOW_MS, EPOCH, secrets, leaves, UNTIL_MS, member, (0, 1), 20, 1)
    update = MeshUpdate(MEMBER.subject, token("brakes"), answer.encode())
    sealed = update.seal(MEMBER, AUTHORITY)
    liar = SigningKey.from_seed(seed("a liar"))
    return {
        "instance": INSTANCE.hex(),
        "authority": {
            "subject": ISSUER.subject.hex(),
            "signing_key": SIGNING.public.raw.hex(),
            "sealing_seed": SEALING.encode().hex(),
            "word": WORD.encode().hex(),
            "fields": [AUTHORITY.public.raw.hex(), WORD.epoch_ms, WORD.notice_ms],
            "bad": {
                "by another": WORD.sign(liar).encode().hex(),
                "of another authority": replace(WORD, authority=bytes(16)).sign(SIGNING).encode().hex(),
                "of another instance": replace(WORD, instance=bytes(32)).sign(SIGNING).encode().hex(),
            },
            "malformed": {
                "epochs without length": replace(WORD, epoch_ms=0).sign(SIGNING).encode().hex(),
                "endless epochs": replace(WORD, epoch_ms=1 << 40).sign(SIGNING).encode().hex(),
            },
        },
        "member": {"key": LASTING.public.hex(), "until_ms": UNTIL_MS, "certificate": member.hex()},
        "request": {
            "principal": MEMBER.subject.hex(),
            "fields": [request.token.hex(), 2, 2, LASTING.public.hex(), []],
            "bytes": request.encode().hex(),
            "sealed": request.seal(ISSUER, MEMBER.subject).hex(),
            "terms": terms.encode().hex(),
        },
        "answer": {
            "fields": [
                NOW_MS,
                EPOCH,
                [one.hex() for one in secrets],
                [[seed.hex(), certified.hex()] for seed, certified in leaves],
                UNTIL_MS,
                member.hex(),
                [0, 1],
                20,
                1,
            ],
            "bytes": answer.encode().hex(),
        },
        "refusal": {
            "fields": ["renewed", "the message", "the hint"],
            "bytes": MeshRefusal("renewed", "the message", "the hint").encode().hex(),
        },
        "updates": {
            "fields": [update.token.hex(), "07" * 16],
            "bytes": MeshUpdatesRequest(update.token, b"\x07" * 16).encode().hex(),
            "sealed": MeshUpdatesRequest(update.token, b"\x07" * 16).seal(ISSUER, MEMBER.subject).hex(),
            "page": MeshUpdatesPage(b"\x08" * 16, (sealed,)).encode().hex(),
        },
        "update": {
            "sealing_seed": OWN.encode().hex(),
            "fields": [update.token.hex(), answer.encode().hex()],
            "sealed": sealed.hex(),
            "bad": {
                "by another": update.seal(MEMBER, liar).hex(),
                "another member's": replace(update, principal=bytes(16)).seal(MEMBER, AUTHORITY).hex(),
                "cut short": sealed[:-1].hex(),
                "altered": (sealed[:-1] + bytes([sealed[-1] ^ 1])).hex(),
            },
        },
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="utf-8")
