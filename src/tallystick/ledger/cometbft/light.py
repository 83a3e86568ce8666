"""A light client: from one header that is trusted to any later one, without following the chain.

Threat: a node that shows a header nobody agreed on, a validator set of its own, or an old fork signed by keys that
count no longer. A header is believed if its votes hold more than two thirds of its own validators' power, and

- *next to the trusted one*: its validators are those that the trusted header names as next;
- *further on* (skipping): more than a third of the trusted header's validators signed it too, so at least one honest
  one did; where too few are left, a header half way is verified first.

The trusted header must be younger than the trusting period, within which validators answer for what they signed; then
the header is compared with what the witnesses show: if one differs and is as well signed, somebody cheats, and neither
is believed (`Withheld`, with both hashes). Trust begins with a height and a hash that came by another way: an operator,
or as many validators as the trust file asks for (`tally chain join --sync`). Left out: sequential verification, and
evidence that is sent back to the chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tallystick.errors import Forged, Malformed, Misuse, Unavailable, Withheld
from tallystick.ledger.cometbft import headers
from tallystick.ledger.cometbft.headers import LightBlock
from tallystick.ledger.cometbft.roots import app_hash
from tallystick.ledger.cometbft.rpc import RpcEndpoint
from tallystick.runtime.sources import Clock

_PAGE = 100


@dataclass(frozen=True)
class LightSettings:
    trusting_s: int = 7 * 86_400  # below what validators are held to account for (genesis: evidence.max_age)
    drift_s: int = 10  # that a header may lie in the future


class LightClient:
    """Verified headers of one chain, through `primary`, compared with `witnesses`."""

    def __init__(
        self,
        chain_id: str,
        trusted: tuple[int, bytes],
        primary: RpcEndpoint,
        witnesses: list[RpcEndpoint],
        clock: Clock,
        settings: LightSettings = LightSettings(),
    ) -> None:
        """`trusted` is a height and the hash of its header; raises `Forged` if the primary shows another."""
        self._chain_id, self._clock, self._settings = chain_id, clock, settings
        self._primary, self._witnesses = primary, witnesses
        height, digest = trusted
        first = self._fetch(height)
        if first.hash != digest:
            raise Forged(f"header {height}: hash {digest.hex()} expected, found {first.hash.hex()}")
        headers.check_commit(first)
        self.trusted = first

    def verify(self, height: int) -> LightBlock:
        """The header of `height`, believed; it is trusted from now on."""
        if height < self.trusted.height:
            raise Misuse(f"header {height}: below the trusted one, {self.trusted.height}")
        if height == self.trusted.height:
            return self.trusted
        check_period(self.trusted, self._clock.now(), self._settings.trusting_s)
        trusted, wanted = self.trusted, [self._fetch(height)]
        while wanted:
            candidate = wanted[-1]
            self._check_time(candidate, trusted)
            headers.check_commit(candidate)
            if follows(trusted, candidate):
                trusted = wanted.pop()
                continue
            middle = (trusted.height + candidate.height) // 2
            if middle == trusted.height:
                raise Forged(f"header {candidate.height}: its validators are not those that {middle} names as next")
            wanted.append(self._fetch(middle))
        compare_witnesses(trusted, self._witnesses, self._chain_id)
        self.trusted = trusted
        return trusted

    def verify_roots(self, height: int, size: int, root: bytes, state_root: bytes) -> LightBlock:
        """That the ledger after block `height` had this tree and state: the next header commits to them."""
        block = self.verify(height + 1)
        if block.app_hash != app_hash(size, root, state_root):
            raise Forged(f"header {height + 1}: it commits to another tree or state")
        return block

    def _fetch(self, height: int) -> LightBlock:
        block = fetch(self._primary, height)
        headers.check_form(block, self._chain_id, height)
        return block

    def _check_time(self, block: LightBlock, trusted: LightBlock) -> None:
        if block.time.ms <= trusted.time.ms or block.time.ms / 1000 > self._clock.now() + self._settings.drift_s:
            raise Forged(f"header {block.height}: its time does not lie between the trusted one's and now")


def follows(trusted: LightBlock, block: LightBlock) -> bool:
    """Whether a well-signed block is believed because of the trusted one; False: a header between them is needed."""
    if block.height == trusted.height + 1:
        return block.validators_hash == trusted.next_validators_hash
    try:
        headers.check_power(block, trusted.validators, 1)
    except Forged:
        return False
    return True


def check_period(trusted: LightBlock, now: float, trusting_s: int) -> None:
    if trusted.time.ms / 1000 + trusting_s <= now:
        raise Unavailable(
            f"header {trusted.height}: it is older than the trusting period of {trusting_s} s",
            hint="begin again with a recent height and hash from somebody you trust",
        )


def compare_witnesses(block: LightBlock, witnesses: list[RpcEndpoint], chain_id: str) -> None:
    """Raise `Withheld` if a witness shows another header that is as well signed; at least one must answer."""
    answered = not witnesses
    for witness in witnesses:
        try:
            other = fetch(witness, block.height)
            headers.check_form(other, chain_id, block.height)
            headers.check_commit(other)
        except (Unavailable, Forged, Malformed, Misuse):
            continue  # away, behind, or lying clumsily
        answered = True
        if other.hash != block.hash:
            raise Withheld(
                f"header {block.height}: {witness.name} shows {other.hash.hex()}, the primary {block.hash.hex()}",
                reason="split-view",
                hint="validators signed two headers of one height: trust neither, and tell the operators",
            )
    if not answered:
        raise Unavailable(f"header {block.height}: no witness shows it", hint="name witnesses that are reachable")


def fetch(endpoint: RpcEndpoint, height: int) -> LightBlock:
    """Header, votes and validators of a height, as the endpoint tells; raises `Malformed` or `Unavailable`."""
    try:
        signed = endpoint.call("commit", height=str(height))["signed_header"]
        validators: list[Any] = []
        for page in range(1, headers.VALIDATORS_MAX // _PAGE + 1):
            answer = endpoint.call("validators", height=str(height), page=str(page), per_page=str(_PAGE))
            validators += answer["validators"]
            if len(validators) >= int(answer["total"]):
                break
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(f"{endpoint.name}: not a header: {error}") from error
    return LightBlock.parse(signed, validators)
