"""The grant: its bytes, and how updates fold in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick import wire
from tallystick.authority.grant import Grant, GrantLabels, GrantPolicies, GrantSettings, GrantTopicPolicy
from tallystick.errors import Malformed

PLAIN = Grant(
    permit=b"permit",
    undo_token=bytes(32),
    token=bytes(16),
    epochs=(),
    private_keys=(),
    schemas=(b"schema",),
    settings=GrantSettings(1, 0, 1, 60_000),
    erasure_keys=(),
    erased=(),
    policies=None,
    labels=None,
    version=3,
)


def policy(group: int, version: int, epoch: int, not_before_ms: int = 0) -> GrantTopicPolicy:
    return GrantTopicPolicy(group, version, epoch, b"public" if epoch else b"", b"", b"", not_before_ms)


POLICIES = GrantPolicies(b"key", b"space", ((1, 0), (2, 100)), (policy(0, 1, 1), policy(0, 1, 2, 100)))
LABELS = GrantLabels(b"code", ((1, bytes(32)),))


@pytest.mark.parametrize("policies", [None, POLICIES])
@pytest.mark.parametrize("labels", [None, LABELS])
def test_a_grant_reads_back(policies: GrantPolicies | None, labels: GrantLabels | None) -> None:
    grant = replace(PLAIN, policies=policies, labels=labels)
    assert Grant.decode(grant.encode()) == grant


@pytest.mark.parametrize("wrong", [[], [b"", b"", [[1]], []], [b"", b"", [], [[0] * 7]]])
def test_malformed_policies_are_refused(wrong: object) -> None:
    value = wire.decode(PLAIN.encode())
    value[10] = wrong
    with pytest.raises(Malformed, match="grant"):
        Grant.decode(wire.encode(value))


def test_labels_have_keys_of_32_bytes() -> None:
    value = wire.decode(replace(PLAIN, labels=LABELS).encode())
    value[11][1][0][1] = bytes(31)
    with pytest.raises(Malformed, match="32 bytes"):
        Grant.decode(wire.encode(value))


def test_what_an_update_leaves_out_stays() -> None:
    held = replace(PLAIN, policies=POLICIES, labels=LABELS)
    update = replace(PLAIN, permit=b"", undo_token=b"", schemas=(), version=4)
    assert held.updated(update) == replace(held, version=4)


def test_an_update_brings_the_first_policies_and_later_ones() -> None:
    first = PLAIN.updated(replace(PLAIN, policies=POLICIES, labels=LABELS))
    assert (first.policies, first.labels) == (POLICIES, LABELS)
    news = GrantPolicies(b"", b"", ((2, 50), (3, 200)), (policy(0, 1, 2, 50), policy(1, 1, 2, 50)))
    policies = first.updated(replace(PLAIN, policies=news, labels=GrantLabels(b"", ((2, bytes(32)),)))).policies
    assert policies == GrantPolicies(
        b"key", b"space", ((1, 0), (2, 50), (3, 200)), (policy(0, 1, 1), policy(0, 1, 2, 50), policy(1, 1, 2, 50))
    )


def test_labels_of_a_new_epoch_join_the_others() -> None:
    held = replace(PLAIN, labels=LABELS).updated(replace(PLAIN, labels=GrantLabels(b"", ((2, bytes(32)),))))
    assert held.labels == GrantLabels(b"code", ((1, bytes(32)), (2, bytes(32))))


def test_the_newest_version_that_has_begun_counts_and_there_the_newest_epoch() -> None:
    policies = replace(
        POLICIES, topics=(policy(0, 1, 1), policy(0, 1, 3, 100), policy(0, 2, 2, 200), policy(0, 3, 0, 300))
    )
    at = [policies.topic_policy(0, now_ms) for now_ms in (0, 100, 200, 300)]
    assert at == [policy(0, 1, 1), policy(0, 1, 3, 100), policy(0, 2, 2, 200), None]
    assert policies.topic_policy(1, 0) is None


def test_the_attribute_epoch_to_seal_under_is_the_newest_that_has_begun() -> None:
    assert [POLICIES.epoch(now_ms) for now_ms in (0, 99, 100)] == [1, 1, 2]
    assert replace(POLICIES, epochs=((1, 5),)).epoch(4) is None
