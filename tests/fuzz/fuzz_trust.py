"""What is signed and travels, before a signature is looked at: permits, certificates, notes, trust files, receipts."""

from __future__ import annotations

from targets import load_atheris, run

with load_atheris().instrument_imports(include=["tallystick"]):
    from makers import World, seed, token
    from provers import Anchorage, certify, sign_note, trust_file

    from tallystick import wire
    from tallystick.trust.certificate import Certificate
    from tallystick.trust.envelope import check_evidence, check_time
    from tallystick.trust.notes import Note, NoteVerifier, verify_checkpoint
    from tallystick.trust.permit import Permit, UndoOrder
    from tallystick.trust.promise import Anchor, Promise
    from tallystick.trust.receipt import AnchoredBefore, EntryProof, Receipt
    from tallystick.trust.trustfile import TrustFile

WORLD, TRUST = World(), trust_file(witnesses=1)
PARCEL = seed("parcel")
RECEIPT = Anchorage(TRUST, [PARCEL], cosigners=1).receipt(0)
AUTHORITY = certify(WORLD.authority, TRUST)
NOTE = sign_note(TRUST.origin, 5, seed("root"), cosigners=1)


if __name__ == "__main__":
    run(
        [
            wire.decode,
            lambda data: Permit.decode(data).verify(WORLD.authority),
            lambda data: Certificate.decode(data).verify(TRUST.root_verifier, instance=TRUST.instance),
            lambda data: TRUST.root_verifier.verify("tallystick certificate 1", data, AUTHORITY.body),
            TrustFile.parse,
            Note.decode,
            lambda data: verify_checkpoint(data, TRUST),
            lambda data: Receipt.decode(data).verify(PARCEL, token("brakes"), TRUST),
            lambda data: EntryProof.decode(data).verify(TRUST),
            AnchoredBefore.decode,
            Anchor.decode_entry,
            lambda data: NoteVerifier.decode(data.decode("latin-1")),
            UndoOrder.decode,
            Promise.decode,
            lambda data: check_evidence(data, lambda _: WORLD.authority_key.public),
            lambda data: check_time(data, WORLD.authority_key.public, bytes(16), bytes(16)),
        ],
        [
            wire.encode([1, [b"x", None], "y"]),
            WORLD.permit("car", "brakes").encode(),
            AUTHORITY.encode(),
            AUTHORITY.signature,
            TRUST.to_json().encode(),
            NOTE,
            NOTE,
            RECEIPT.encode(),
            RECEIPT.anchor.encode(),
            AnchoredBefore(RECEIPT.anchor, RECEIPT.anchor, RECEIPT.path).encode(),
            RECEIPT.anchor.entry,
            TRUST.witnesses[0].encode(),
        ],
    )
