"""Skipping verification over validators that change: synthetic headers with real hashes and signatures, one validator
of four replaced with every height, so that two heights three apart have too little in common to be believed at once."""

from __future__ import annotations

from base64 import b64encode
from calendar import timegm
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from without import without

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged
from tallystick.ledger.cometbft.light import (
    LightBlock,
    LightClient,
    check_commit,
    check_form,
    follows,
    header_hash,
    validators_hash,
    vote_bytes,
)
from tallystick.runtime.sources import ManualClock

CHAIN, FIRST, TARGET, EACH = "changing", 1, 33, 4
NOW = timegm((2026, 1, 1, 1, 0, 0))
FORK = 7  # where the attacker's history leaves the true one


def keys_from(name: str) -> Callable[[int], list[SigningKey]]:
    """The validators of a height: keys `height` to `height + 3` of a long row."""
    return lambda height: [
        SigningKey.from_seed(sha256(f"{name} {number}".encode()).digest()) for number in range(height, height + EACH)
    ]


TRUE, STOLEN = keys_from("true"), keys_from("attacker")


def usurped(height: int) -> list[SigningKey]:
    return STOLEN(height) if height >= FORK else TRUE(height)


def set_of(keys: list[SigningKey]) -> tuple[tuple[bytes, int], ...]:
    return tuple((key.public.raw, 10) for key in keys)


class Chain:
    """An endpoint that shows a well-formed, well-signed history of the validators `keys_at`; it counts what was asked
    for. `app_hash` tells one history from another."""

    name = "synthetic"

    def __init__(self, keys_at: Callable[[int], list[SigningKey]] = TRUE, app_hash: str = "00" * 32) -> None:
        self._keys_at, self._app_hash = keys_at, app_hash
        self.asked: list[int] = []

    def call(self, method: str, **params: Any) -> Any:
        height = int(params["height"])
        if method == "commit":
            self.asked.append(height)
            return {"signed_header": self.signed_header(height)}
        keys = [
            {"pub_key": {"value": b64encode(raw).decode()}, "voting_power": str(power)}
            for raw, power in set_of(self._keys_at(height))
        ]
        return {"validators": keys, "total": str(len(keys))}

    def next_after(self, height: int) -> list[SigningKey]:
        """True validators name true ones, whatever the attacker shows next."""
        is_true = set_of(self._keys_at(height)) == set_of(TRUE(height))
        return TRUE(height + 1) if is_true else self._keys_at(height + 1)

    def signed_header(self, height: int) -> Any:
        time = f"2026-01-01T00:{height // 60:02d}:{height % 60:02d}Z"
        empty = {"hash": "", "parts": {"total": 0, "hash": ""}}
        header = {
            "version": {"block": "11", "app": "1"},
            "chain_id": CHAIN,
            "height": str(height),
            "time": time,
            "last_block_id": empty,
            "last_commit_hash": "",
            "data_hash": "",
            "consensus_hash": "",
            "validators_hash": validators_hash(set_of(self._keys_at(height))).hex(),
            "next_validators_hash": validators_hash(set_of(self.next_after(height))).hex(),
            "app_hash": self._app_hash,
            "last_results_hash": "",
            "evidence_hash": "",
            "proposer_address": "",
        }
        votes = [
            {
                "validator_address": sha256(key.public.raw).digest()[:20].hex(),
                "block_id_flag": 2,
                "timestamp": time,
                "signature": "",
            }
            for key in self._keys_at(height)
        ]
        block_id = {"hash": header_hash(header).hex(), "parts": {"total": 1, "hash": "11" * 32}}
        signed = {
            "header": header,
            "commit": {"height": str(height), "round": 0, "block_id": block_id, "signatures": votes},
        }
        block = LightBlock.parse(signed, [])
        for key, vote, signature in zip(self._keys_at(height), votes, block.signatures, strict=True):
            vote["signature"] = b64encode(key.sign_raw(vote_bytes(block, signature))).decode()
        return signed


def block_of(chain: Chain, height: int) -> LightBlock:
    return LightBlock.parse(chain.signed_header(height), chain.call("validators", height=height)["validators"])


def client(chain: Chain) -> LightClient:
    trusted = (FIRST, block_of(Chain(), FIRST).hash)
    return LightClient(CHAIN, trusted, chain, [], ManualClock(NOW))  # type: ignore[arg-type]


def test_validators_that_have_changed_by_more_than_two_thirds_are_reached_by_halves() -> None:
    chain = Chain()
    assert follows(block_of(chain, 1), block_of(chain, 3)), "two of four are left: more than a third"
    assert not follows(block_of(chain, 1), block_of(chain, 4)), "one of four is not"
    light = client(chain)
    assert light.verify(TARGET).height == TARGET
    steps = set(chain.asked)
    assert len(steps) < TARGET - FIRST, "not every header"
    for middle in (17, 9, 5, 3):
        assert middle in steps
    assert light.trusted.height == TARGET


def test_the_next_header_must_have_the_validators_that_were_named() -> None:
    """A history that an attacker's own validators sign from some height on; each of its headers is well signed."""
    chain = Chain(usurped, "aa" * 32)
    forged = block_of(chain, FORK)
    check_form(forged, CHAIN, FORK)
    check_commit(forged)
    light = LightClient(CHAIN, (FIRST, block_of(chain, FIRST).hash), chain, [], ManualClock(NOW))  # type: ignore[arg-type]
    with pytest.raises(Forged, match="not those that"):
        light.verify(TARGET)
    assert light.trusted.height == FIRST, "nothing on the way is trusted because of it"
    with without("the step from a trusted header"):
        assert light.verify(TARGET).validators == set_of(STOLEN(TARGET)), "the attack succeeds"


class ForgedMiddle(Chain):
    """The true chain, but half way there is a header that the attacker made and signed."""

    def __init__(self, middle: int) -> None:
        super().__init__(lambda height: STOLEN(height) if height in self.forged else TRUE(height))
        self.forged = (middle, middle + 1, TARGET)


def test_a_forged_header_half_way_does_not_carry_a_forged_target() -> None:
    chain = ForgedMiddle((FIRST + TARGET) // 2)
    light = client(chain)
    with pytest.raises(Forged):
        light.verify(TARGET)
    assert light.trusted.height == FIRST
    with without("the overlap of validators"):
        believed = client(ForgedMiddle(17)).verify(TARGET)
    assert believed.validators == set_of(STOLEN(TARGET)), "without the overlap whoever signs for itself is believed"


def test_a_true_signature_is_not_counted_twice() -> None:
    """One old validator that turned, named several times in a commit, is one of four."""
    trusted = block_of(Chain(), FIRST)
    turned = TRUE(FIRST)[0]
    block = block_of(Chain(lambda height: [turned, *STOLEN(height)[1:]]), TARGET)
    doubled = LightBlock(**{**vars(block), "signatures": block.signatures + (block.signatures[0],) * 3})
    assert not follows(trusted, doubled)
