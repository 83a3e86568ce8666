"""The light client against a real chain, and against a node that forges what it shows; each forgery succeeds with its
check switched off."""

from __future__ import annotations

import copy
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import pytest
from chain_world import Chain, ChainWorld, wait_until
from without import without

from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Misuse, TallystickError, Unavailable, Withheld
from tallystick.ledger.cometbft.client import chain_id
from tallystick.ledger.cometbft.light import (
    LightBlock,
    LightClient,
    LightSettings,
    fetch,
    header_hash,
    validators_hash,
    vote_bytes,
)
from tallystick.ledger.cometbft.rpc import RpcEndpoint
from tallystick.runtime.sources import ManualClock, SystemClock

TARGET = 8
FORM, VOTES, STEP = "the form of a header", "the votes for a header", "the step from a trusted header"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    chain = Chain(ChainWorld(tmp_path_factory.mktemp("light")))
    try:
        engine = chain.client()
        for transaction in chain.world.founding():
            engine.wait(engine.submit(transaction.data, 0), 30)
        engine.close()
        wait_until(lambda: chain.heights()[0] > TARGET + 2)
        yield chain
    finally:
        chain.close()


class Bent:
    """An endpoint whose answers at the target height are bent."""

    name = "bent"

    def __init__(self, endpoint: RpcEndpoint, bend: Callable[[str, Any], Any] = lambda method, answer: answer) -> None:
        self._endpoint, self._bend = endpoint, bend

    def call(self, method: str, **params: Any) -> Any:
        answer = copy.deepcopy(self._endpoint.call(method, **params))
        return self._bend(method, answer) if params.get("height") == str(TARGET) else answer


@pytest.fixture
def true(chain: Chain) -> Iterator[RpcEndpoint]:
    host, _, port = chain.world.cards[0].rpc.rpartition(":")
    endpoint = RpcEndpoint(host, int(port))
    yield endpoint
    endpoint.close()


def light(chain: Chain, primary: Any, *witnesses: Any, clock: Any = None) -> LightClient:
    first = fetch(primary, 2)
    name = chain_id(chain.world.instance)
    return LightClient(name, (2, first.hash), primary, list(witnesses), clock or SystemClock())


def test_headers_of_a_real_chain_are_believed(chain: Chain, true: RpcEndpoint) -> None:
    client = light(chain, true, true)
    assert client.verify(3).height == 3, "the next one"
    assert client.verify(TARGET).height == TARGET, "a later one"
    block = chain.validators[0].application.book.reader.block(TARGET)
    client.verify_roots(TARGET, block.size, block.root, block.state_root)
    with pytest.raises(Forged, match="another tree or state"):
        client.verify_roots(TARGET, block.size, block.root, bytes(32))
    with pytest.raises(Misuse, match="below the trusted"):
        client.verify(2)


def test_the_hash_is_cometbft_s_own(true: RpcEndpoint) -> None:
    for height in (1, 2, TARGET):
        told = true.call("commit", height=str(height))["signed_header"]["commit"]["block_id"]["hash"]
        assert fetch(true, height).hash.hex().upper() == told


def forge_app_hash(method: str, answer: Any) -> Any:
    if method == "commit":
        answer["signed_header"]["header"]["app_hash"] = "AA" * 32
    return answer


def forge_header_and_votes(method: str, answer: Any) -> Any:
    """The votes are made to name the forged header; their signatures are of the true one."""
    if method == "commit":
        signed = answer["signed_header"]
        signed["header"]["app_hash"] = "AA" * 32
        signed["commit"]["block_id"]["hash"] = header_hash(signed["header"]).hex()
    return answer


def drop_votes(method: str, answer: Any) -> Any:
    if method == "commit":
        for one in answer["signed_header"]["commit"]["signatures"]:
            one["block_id_flag"] = 1
    return answer


def other_chain(method: str, answer: Any) -> Any:
    return forge_header_and_votes(method, _renamed(answer)) if method == "commit" else answer


def _renamed(answer: Any) -> Any:
    answer["signed_header"]["header"]["chain_id"] = "another"
    return answer


class Usurper:
    """A whole validator set of the attacker's own, which signs whatever it shows."""

    def __init__(self) -> None:
        self.key = SigningKey.from_seed(bytes(range(32)))
        self.set = ((self.key.public.raw, 10),)

    def __call__(self, method: str, answer: Any) -> Any:
        address = sha256(self.key.public.raw).digest()[:20].hex()
        if method == "validators":
            value = {"type": "tendermint/PubKeyEd25519", "value": b64encode(self.key.public.raw).decode()}
            return {"validators": [{"pub_key": value, "voting_power": "10", "address": address}], "total": "1"}
        signed = answer["signed_header"]
        signed["header"] |= {"app_hash": "AA" * 32, "validators_hash": validators_hash(self.set).hex()}
        commit = signed["commit"]
        commit["block_id"]["hash"] = header_hash(signed["header"]).hex()
        vote = {**commit["signatures"][0], "validator_address": address, "block_id_flag": 2, "signature": ""}
        commit["signatures"] = [vote]
        unsigned = LightBlock.parse(signed, [])
        vote["signature"] = b64encode(self.key.sign_raw(vote_bytes(unsigned, unsigned.signatures[0]))).decode()
        return answer


@pytest.mark.parametrize(
    ("bend", "switched_off"),
    [
        (forge_app_hash, (FORM,)),
        (forge_header_and_votes, (VOTES, STEP)),
        (drop_votes, (VOTES, STEP)),
        (other_chain, (FORM, VOTES, STEP)),
        (Usurper(), (STEP,)),
    ],
)
def test_a_forgery_is_refused_and_succeeds_without_its_check(
    chain: Chain, true: RpcEndpoint, bend: Any, switched_off: tuple[str, ...]
) -> None:
    with pytest.raises(TallystickError):
        light(chain, Bent(true, bend)).verify(TARGET)
    with without(*switched_off):
        believed = light(chain, Bent(true, bend)).verify(TARGET)
    honest = fetch(true, TARGET)
    assert believed != honest, "the attack succeeds"


def test_an_old_trust_is_none(chain: Chain, true: RpcEndpoint) -> None:
    """Keys that counted a month ago may be anybody's by now."""
    later = ManualClock(SystemClock().now() + 30 * 86_400)
    with pytest.raises(Unavailable, match="trusting period"):
        light(chain, true, clock=later).verify(TARGET)
    with without("the trusting period"):
        assert light(chain, true, clock=later).verify(TARGET).height == TARGET


def test_a_witness_that_shows_another_signed_header_stops_belief(chain: Chain, true: RpcEndpoint) -> None:
    client = light(chain, true, Bent(true, Usurper()))
    with pytest.raises(Withheld, match="the primary"):
        client.verify(TARGET)
    assert client.trusted.height == 2, "nothing of it is believed"
    assert light(chain, true, true, Bent(true, forge_app_hash)).verify(TARGET).height == TARGET, "a clumsy lie"
    with without("the comparison of witnesses"):
        assert light(chain, true, Bent(true, Usurper())).verify(TARGET).height == TARGET


def test_trust_begins_with_the_hash_that_one_was_told(chain: Chain, true: RpcEndpoint) -> None:
    with pytest.raises(Forged, match="expected, found"):
        LightClient(chain_id(chain.world.instance), (2, bytes(32)), true, [], SystemClock(), LightSettings())


@pytest.mark.parametrize("bad", [{}, {"header": {}, "commit": {}}, None, []])
def test_what_is_no_header_is_malformed(bad: Any) -> None:
    with pytest.raises(Malformed):
        LightBlock.parse(bad, [])
