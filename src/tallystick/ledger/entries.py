"""How each kind of entry is written: the encoder's side of `contracts/`, one function per kind.

Fields and their meaning are those of the handler of the same kind; `docs/formats/ledger.md` lists them all.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.signatures import Signer, SigningKey
from tallystick.ledger.contracts import plans, topics
from tallystick.ledger.contracts.access import HOST_CHARACTERS_MAX
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.identity import REVOKE_CONTEXT, revoke_statement
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import EVIDENCE_BYTES_MAX, OperatorRole
from tallystick.ledger.contracts.retention import Retention
from tallystick.ledger.contracts.state import NOBODY
from tallystick.trust.campaign import Phase
from tallystick.trust.certificate import Certificate
from tallystick.trust.permit import Operation as PermitOperation
from tallystick.trust.plan import Plan
from tallystick.trust.promise import REASON_CHARACTERS_MAX, Anchor, JointPromise, Promise, Refusal
from tallystick.trust.right import Right
from tallystick.trust.shares import Origin, ShareList, ShareSet, find_false

Signature = tuple[bytes, bytes]  # (administrator, signature)


def enrol(certificate: Certificate) -> bytes:
    return wire.encode([int(EntryKind.ENROL), certificate.encode()])


def replace(certificate: Certificate) -> bytes:
    return wire.encode([int(EntryKind.REPLACE), certificate.encode()])


def revoke(subject: bytes) -> bytes:
    return wire.encode([int(EntryKind.REVOKE), subject, b""])


def revoke_by_root(instance: bytes, subject: bytes, root: Signer) -> bytes:
    signature = root.sign(REVOKE_CONTEXT, revoke_statement(instance, subject))
    return wire.encode([int(EntryKind.REVOKE), subject, signature])


def tenant(tenant_id: bytes, owner: bytes) -> bytes:
    return wire.encode([int(EntryKind.TENANT), tenant_id, owner])


def trust(text: str) -> bytes:
    return wire.encode([int(EntryKind.TRUST), text])


def topic(
    instance: bytes,
    token: bytes,
    tenant_id: bytes,
    owner: bytes,
    owner_key: SigningKey,
    *,
    nodes: Sequence[bytes],
    schema_hash: bytes,
    partitions: int = 1,
    replicas: int = 1,
    flags: int = 0,
    binding: topics.Binding | None = None,
    terms: topics.Terms = topics.Terms(),
) -> bytes:
    """Without a binding it is the entry of version 1, which has no terms."""
    signature = _sign_schema(owner_key, instance, token, 1, schema_hash)
    keep_ms, keep_parcels, pace_ms = terms
    return wire.encode(
        [
            *(int(EntryKind.TOPIC), token, tenant_id, owner, partitions, replicas, flags),
            *(list(nodes), schema_hash, signature),
            *(() if binding is None else ([*binding], [keep_ms, keep_parcels], pace_ms, [])),
        ]
    )


def bind_topic(instance: bytes, tenant_id: bytes, authority: bytes, word: bytes, key: SigningKey) -> topics.Binding:
    """An authority's word that the token which `word` makes is a tenant's."""
    statement = topics.binding_statement(instance, tenant_id, authority, word)
    return topics.Binding(authority, word, key.sign(topics.BINDING_CONTEXT, statement))


def schema(instance: bytes, token: bytes, version: int, schema_hash: bytes, owner_key: SigningKey) -> bytes:
    signature = _sign_schema(owner_key, instance, token, version, schema_hash)
    return wire.encode([int(EntryKind.SCHEMA), token, version, schema_hash, signature])


def assign(token: bytes, partition: int, nodes: Sequence[bytes]) -> bytes:
    return wire.encode([int(EntryKind.ASSIGN), token, partition, list(nodes)])


def close_topic(token: bytes) -> bytes:
    return wire.encode([int(EntryKind.CLOSE_TOPIC), token])


def retain(token: bytes, retention: Retention) -> bytes:
    return wire.encode([int(EntryKind.RETAIN), token, [*retention]])


def release(token: bytes, partition: int, below: int) -> bytes:
    return wire.encode([int(EntryKind.RELEASE), token, partition, below])


def announce_epoch(token: bytes, epoch: int, public_key_hash: bytes, not_before_ms: int) -> bytes:
    return wire.encode([int(EntryKind.ANNOUNCE_EPOCH), token, epoch, public_key_hash, not_before_ms])


def end_epoch(token: bytes, epoch: int, how: End, time_ms: int) -> bytes:
    return wire.encode([int(EntryKind.END_EPOCH), token, epoch, int(how), time_ms])


def announce_key(token: bytes, name: bytes, public_key_hash: bytes) -> bytes:
    return wire.encode([int(EntryKind.ANNOUNCE_KEY), token, name, public_key_hash])


def grant(token: bytes, principal: bytes, operations: int, *, allow: bool = True, host: str = "*") -> bytes:
    return wire.encode([int(EntryKind.GRANT), token, principal, int(allow), int(operations), host])


def withdraw(token: bytes, principal: bytes, operations: int, *, allow: bool = True, host: str = "*") -> bytes:
    return wire.encode([int(EntryKind.WITHDRAW), token, principal, int(allow), int(operations), host])


def issue_permit(
    identifier: bytes, operation: PermitOperation, token: bytes, principal: bytes, not_after_ms: int
) -> bytes:
    return wire.encode([int(EntryKind.ISSUE_PERMIT), identifier, int(operation), token, principal, not_after_ms])


def undo_permit(identifier: bytes) -> bytes:
    return wire.encode([int(EntryKind.UNDO_PERMIT), identifier])


def revoke_permit(identifier: bytes) -> bytes:
    return wire.encode([int(EntryKind.REVOKE_PERMIT), identifier])


def operation(
    operator: bytes,
    role: OperatorRole,
    token: bytes,
    kind: int,
    *,
    time_ms: int,
    request: bytes,
    reason: str = "",
    host: str = "",
    count: int = 1,
    partition: int = 0,
    first: int = 0,
    end: int = 0,
    evidence: bytes = b"",
) -> bytes:
    """`request` is the hash of the signed request, or the Merkle root of `count` of them.

    What comes from strangers is cut to its bounds: a long host or an oversized request spoils no batch. Evidence that
    is too long is left out, since it would be refused.
    """
    reason, host = reason[:REASON_CHARACTERS_MAX], host[:HOST_CHARACTERS_MAX]
    evidence = evidence if len(evidence) <= EVIDENCE_BYTES_MAX else b""
    return wire.encode(
        [
            *(int(EntryKind.OPERATION), operator, int(role), token, int(kind), reason, host),
            *(count, partition, first, end, time_ms, request, evidence),
        ]
    )


def published(
    publisher: bytes, token: bytes, partition: int, parcels: Sequence[tuple[int, bytes]], time_ms: int, host: str
) -> bytes:
    """One publisher's parcels in a partition, by offset and hash, as whoever anchors them tells of them."""
    (first, one), (last, _) = parcels[0], parcels[-1]
    return operation(
        *(publisher, OperatorRole.PUBLISHER, token, int(Right.WRITE)),
        time_ms=time_ms,
        request=one if len(parcels) == 1 else merkle.root([merkle.leaf_hash(parcel) for _, parcel in parcels]),
        host=host,
        count=len(parcels),
        partition=partition,
        first=first,
        end=last + 1,
    )


def junk(reason: str, count: int, kind: int, *, time_ms: int, host: str = "", requests: bytes = bytes(32)) -> bytes:
    """What nobody can be blamed for, one aggregate per reason and window."""
    nobody = (NOBODY, OperatorRole.NONE, NOBODY)
    return operation(*nobody, kind, time_ms=time_ms, request=requests, reason=reason, host=host, count=count)


def anchor(token: bytes, partition: int, size: int, root: bytes) -> bytes:
    return Anchor(token, partition, size, root).encode_entry()


def notarise(
    token: bytes, partition: int, size: int, root: bytes, *, before: int, refused: Sequence[Refusal] = ()
) -> bytes:
    return Anchor(token, partition, size, root, before, tuple(refused)).encode_entry()


def retire(token: bytes, partition: int, below: int, root: bytes) -> bytes:
    return wire.encode([int(EntryKind.RETIRE), token, partition, below, root])


def broken_promise(promise: Promise, other_leaf: bytes = b"", proof: Sequence[bytes] = ()) -> bytes:
    return wire.encode([int(EntryKind.BROKEN_PROMISE), promise.encode(), other_leaf, list(proof)])


def grant_attribute(
    tenant_id: bytes, principal: bytes, pseudonym: bytes, commitment: bytes, not_after_ms: int = 0
) -> bytes:
    return wire.encode([int(EntryKind.GRANT_ATTRIBUTE), tenant_id, principal, pseudonym, commitment, not_after_ms])


def withdraw_attribute(tenant_id: bytes, principal: bytes, pseudonym: bytes) -> bytes:
    return wire.encode([int(EntryKind.WITHDRAW_ATTRIBUTE), tenant_id, principal, pseudonym])


def drop_attribute(tenant_id: bytes, principal: bytes, pseudonym: bytes) -> bytes:
    return wire.encode([int(EntryKind.DROP_ATTRIBUTE), tenant_id, principal, pseudonym])


def refuse_attributes(holder: bytes, tenant_id: bytes, *, refused: bool = True) -> bytes:
    """`holder` is a principal, or a tenant for all of its principals."""
    return wire.encode([int(EntryKind.REFUSE_ATTRIBUTES), holder, tenant_id, int(refused)])


def topic_policy(token: bytes, group_number: int, version: int, commitment: bytes) -> bytes:
    """An empty commitment lifts the policy."""
    return wire.encode([int(EntryKind.TOPIC_POLICY), token, group_number, version, commitment])


def attribute_epoch(epoch: int, public_key_hash: bytes, not_before_ms: int) -> bytes:
    return wire.encode([int(EntryKind.ATTRIBUTE_EPOCH), epoch, public_key_hash, not_before_ms])


def group(identifier: bytes, lease_ms: int, tokens: Sequence[bytes]) -> bytes:
    return wire.encode([int(EntryKind.GROUP), identifier, lease_ms, sorted(tokens)])


def join(group_id: bytes, member: bytes) -> bytes:
    return wire.encode([int(EntryKind.JOIN), group_id, member])


def leave(group_id: bytes, member: bytes) -> bytes:
    return wire.encode([int(EntryKind.LEAVE), group_id, member])


def commit_offset(
    group_id: bytes, member: bytes, token: bytes, partition: int, *, fence: int, old: int, new: int
) -> bytes:
    return wire.encode([int(EntryKind.COMMIT_OFFSET), group_id, member, token, partition, fence, old, new])


def reset_offset(group_id: bytes, token: bytes, partition: int, *, fence: int, old: int, new: int) -> bytes:
    return wire.encode([int(EntryKind.RESET_OFFSET), group_id, NOBODY, token, partition, fence, old, new])


def lift(principal: bytes) -> bytes:
    return wire.encode([int(EntryKind.LIFT), principal])


def equivocation(
    publisher: bytes, key: bytes, header_a: bytes, signature_a: bytes, header_b: bytes, signature_b: bytes
) -> bytes:
    return wire.encode([int(EntryKind.EQUIVOCATION), publisher, key, header_a, signature_a, header_b, signature_b])


def write(token: bytes, write_id: bytes, batch: int, digest: bytes) -> bytes:
    return wire.encode([int(EntryKind.WRITE), token, write_id, batch, digest])


def erase(token: bytes, publisher: bytes, period: int) -> bytes:
    return wire.encode([int(EntryKind.ERASE), token, publisher, period])


def set_(name: str, value: int) -> bytes:
    return wire.encode([int(EntryKind.SET), name, value])


def activate(contract: str, version: int, height: int) -> bytes:
    return wire.encode([int(EntryKind.ACTIVATE), contract, version, height])


def withdraw_activation(contract: str, version: int, height: int) -> bytes:
    return wire.encode([int(EntryKind.WITHDRAW_ACTIVATION), contract, version, height])


def overlay(
    identifier: bytes,
    administrators: Sequence[bytes],
    threshold: int,
    *,
    number: int = 1,
    signatures: Sequence[Signature] = (),
) -> bytes:
    """The first list of administrators has number 1 and no signatures."""
    names, signed = sorted(administrators), [[*one] for one in sorted(signatures)]
    return wire.encode([int(EntryKind.OVERLAY), identifier, number, names, threshold, signed])


def plan(new: Plan, first: int, signatures: Sequence[Signature]) -> bytes:
    """`first` is the height from which it counts."""
    return wire.encode([int(EntryKind.PLAN), new.encode(), first, [[*one] for one in sorted(signatures)]])


def sign_plan(instance: bytes, new: Plan, first: int, administrator: bytes, key: SigningKey) -> Signature:
    statement = plans.plan_statement(instance, new.hash, first)
    return administrator, key.sign(plans.PLAN_CONTEXT, statement)


def sign_administrators(
    instance: bytes,
    identifier: bytes,
    number: int,
    administrators: Sequence[bytes],
    threshold: int,
    *,
    by: bytes,
    key: SigningKey,
) -> Signature:
    """An old administrator's word for new ones."""
    named = plans.administrators_statement(instance, identifier, number, sorted(administrators), threshold)
    return by, key.sign(plans.OVERLAY_CONTEXT, named)


def entrust(token: bytes, overlay_id: bytes, node: bytes, lease_ms: int) -> bytes:
    return wire.encode([int(EntryKind.ENTRUST), token, overlay_id, node, lease_ms])


def take_back(token: bytes) -> bytes:
    """The topic's own nodes carry it again."""
    return entrust(token, NOBODY, NOBODY, 0)


def lease(token: bytes, partition: int, fence: int) -> bytes:
    return wire.encode([int(EntryKind.LEASE), token, partition, fence])


def suspect(overlay_id: bytes, version: int, relay: bytes, token: bytes = b"") -> bytes:
    """A principal names a topic of its own that travels over the overlay, a relay none."""
    return wire.encode([int(EntryKind.SUSPECT), overlay_id, version, relay, token])


def two_sets(signer: bytes, key: bytes, one: ShareSet, other: ShareSet) -> bytes:
    return wire.encode([int(EntryKind.TWO_SETS), signer, key, one.encode(), other.encode()])


def false_share(signer: bytes, key: bytes, shares: ShareSet, listed: ShareList, number: int | None = None) -> bytes:
    """`number` is that of the share that does not fit; left out, it is looked for."""
    if number is None:
        number = find_false(shares, listed) or 0
    return wire.encode([int(EntryKind.FALSE_SHARE), signer, key, shares.encode(), listed.encode(), number])


def two_origins(signer: bytes, key: bytes, one: Origin, other: Origin) -> bytes:
    return wire.encode([int(EntryKind.TWO_ORIGINS), signer, key, one.encode(), other.encode()])


def two_orders(signer: bytes, key: bytes, index: int, one: JointPromise, other: JointPromise) -> bytes:
    """`index` is the signer's in its virtual node, by the plan of the promises."""
    return wire.encode([int(EntryKind.TWO_ORDERS), signer, key, index, one.encode(), other.encode()])


def release_image(token: bytes, image: bytes, contents: bytes) -> bytes:
    """`image` is the root of the sealed object, `contents` that of the release record."""
    return wire.encode([int(EntryKind.RELEASE_IMAGE), token, image, contents])


def withdraw_image(token: bytes, image: bytes) -> bytes:
    return wire.encode([int(EntryKind.WITHDRAW_IMAGE), token, image])


def campaign(token: bytes, identifier: bytes, images: Sequence[tuple[bytes, bytes]], phases: Sequence[Phase]) -> bytes:
    """`images` are (token of the release, image); without any, vehicles are asked for a diagnosis."""
    named, planned = [[*one] for one in sorted(images)], [[*one] for one in phases]
    return wire.encode([int(EntryKind.CAMPAIGN), token, identifier, named, planned])


def report_campaign(
    token: bytes, identifier: bytes, number: int, phase: int, *, succeeded: int, failed: int, manifests: bytes
) -> bytes:
    """`manifests` is the root of those that were counted."""
    counted = (number, phase, succeeded, failed, manifests)
    return wire.encode([int(EntryKind.REPORT_CAMPAIGN), token, identifier, *counted])


def stop_campaign(token: bytes, identifier: bytes) -> bytes:
    return wire.encode([int(EntryKind.STOP_CAMPAIGN), token, identifier])


def resume_campaign(token: bytes, identifier: bytes) -> bytes:
    return wire.encode([int(EntryKind.RESUME_CAMPAIGN), token, identifier])


def _sign_schema(key: SigningKey, instance: bytes, token: bytes, version: int, schema_hash: bytes) -> bytes:
    return key.sign(topics.SCHEMA_CONTEXT, topics.schema_statement(instance, token, version, schema_hash))
