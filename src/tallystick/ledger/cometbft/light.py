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

Headers, commits and validator sets come as the JSON of CometBFT's RPC; `LightBlock.parse` makes one value of the three,
and the `check_…` functions are the steps by which it is believed. Nothing of CometBFT's code is used: the hashes are
RFC 6962 trees over protocol buffers, and a vote's signed bytes are its canonical message behind its length.
"""

from __future__ import annotations

from base64 import b64decode
from calendar import timegm
from dataclasses import dataclass
from hashlib import sha256
from time import strptime
from typing import Any

from tallystick.abci.messages import PublicKey, Timestamp
from tallystick.abci.protobuf import Message, int64, nested, octets, sfixed64, text, uint64, write_varint
from tallystick.crypto import merkle
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Malformed, Misuse, Unavailable, Withheld
from tallystick.ledger.cometbft.roots import app_hash
from tallystick.ledger.cometbft.rpc import RpcEndpoint
from tallystick.runtime.sources import Clock

PRECOMMIT, FOR_THE_BLOCK = 2, 2
VALIDATORS_MAX = 1_000


class _Version(Message):
    block: int = uint64(1)
    app: int = uint64(2)


class _Parts(Message):
    total: int = uint64(1)
    hash: bytes = octets(2)


class BlockId(Message):
    hash: bytes = octets(1)
    parts: _Parts | None = nested(2, _Parts, always=True)


class _Vote(Message):
    type: int = uint64(1)
    height: int = sfixed64(2)
    round: int = sfixed64(3)
    block_id: BlockId | None = nested(4, BlockId)
    timestamp: Timestamp | None = nested(5, Timestamp, always=True)
    chain_id: str = text(6)


class _SimpleValidator(Message):
    pub_key: PublicKey | None = nested(1, PublicKey)
    voting_power: int = int64(2)


class _Text(Message):
    value: str = text(1)


class _Number(Message):
    value: int = int64(1)


class _Octets(Message):
    value: bytes = octets(1)


@dataclass(frozen=True)
class Signature:
    validator: bytes  # address
    flag: int
    time: Timestamp
    signature: bytes


@dataclass(frozen=True)
class LightBlock:
    """A header, the votes for it and the validators, as an endpoint claims them."""

    chain_id: str
    height: int
    time: Timestamp
    validators_hash: bytes
    next_validators_hash: bytes
    app_hash: bytes
    hash: bytes  # computed
    commit_round: int
    commit_id: BlockId
    signatures: tuple[Signature, ...]
    validators: tuple[tuple[bytes, int], ...]  # key and power

    @classmethod
    def parse(cls, signed_header: Any, validators: Any) -> LightBlock:
        """Raises `Malformed`."""
        try:
            header, commit = signed_header["header"], signed_header["commit"]
            found = tuple((b64decode(one["pub_key"]["value"]), int(one["voting_power"])) for one in validators)
            if int(commit["height"]) != int(header["height"]) or len(found) > VALIDATORS_MAX:
                raise ValueError("heights differ")
            return cls(
                chain_id=str(header["chain_id"]),
                height=int(header["height"]),
                time=_time(header["time"]),
                validators_hash=bytes.fromhex(header["validators_hash"]),
                next_validators_hash=bytes.fromhex(header["next_validators_hash"]),
                app_hash=bytes.fromhex(header["app_hash"]),
                hash=header_hash(header),
                commit_round=int(commit["round"]),
                commit_id=_block_id(commit["block_id"]),
                signatures=tuple(
                    Signature(
                        bytes.fromhex(one["validator_address"]),
                        int(one["block_id_flag"]),
                        _time(one["timestamp"]),
                        b64decode(one["signature"] or ""),
                    )
                    for one in commit["signatures"]
                ),
                validators=found,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Malformed(f"light block: {error}") from error


def header_hash(header: Any) -> bytes:
    """The hash of a header in JSON: RFC 6962 over its fields, each in its own encoding."""
    version = header["version"]
    fields = [
        _Version(int(version["block"]), int(version.get("app") or 0)).encode(),
        _Text(header["chain_id"]).encode(),
        _Number(int(header["height"])).encode(),
        _time(header["time"]).encode(),
        _block_id(header["last_block_id"]).encode(),
    ]
    for name in (
        *("last_commit_hash", "data_hash", "validators_hash", "next_validators_hash", "consensus_hash"),
        *("app_hash", "last_results_hash", "evidence_hash", "proposer_address"),
    ):
        fields.append(_Octets(bytes.fromhex(header[name])).encode())
    return merkle.root([merkle.leaf_hash(field) for field in fields])


def validators_hash(validators: tuple[tuple[bytes, int], ...]) -> bytes:
    return merkle.root(
        [merkle.leaf_hash(_SimpleValidator(PublicKey(key), power).encode()) for key, power in validators]
    )


def vote_bytes(block: LightBlock, signature: Signature) -> bytes:
    """What a validator signs when it votes for a block."""
    vote = _Vote(PRECOMMIT, block.height, block.commit_round, block.commit_id, signature.time, block.chain_id).encode()
    return write_varint(len(vote)) + vote


def check_form(block: LightBlock, chain_id: str, height: int) -> None:
    """Header, votes and validators belong together, and to the height that was asked for."""
    if (block.chain_id, block.height) != (chain_id, height):
        raise Forged(f"header: chain {chain_id} and height {height} expected, found {block.chain_id}, {block.height}")
    if block.commit_id.hash != block.hash:
        raise Forged(f"header {height}: the votes are for another header")
    if validators_hash(block.validators) != block.validators_hash:
        raise Forged(f"header {height}: the validators are not those that it names")


def check_commit(block: LightBlock) -> None:
    """More than two thirds of its own validators' power signed it."""
    check_power(block, block.validators, 2)


def check_power(block: LightBlock, validators: tuple[tuple[bytes, int], ...], thirds: int) -> None:
    """More than `thirds` thirds of the power of `validators` signed the block. Raises `Forged`."""
    powers = {sha256(key).digest()[:20]: (key, power) for key, power in validators}
    signed: set[bytes] = set()
    for one in block.signatures:
        if one.flag == FOR_THE_BLOCK and one.validator in powers and one.validator not in signed:
            VerifyKey(powers[one.validator][0]).verify_raw(one.signature, vote_bytes(block, one))
            signed.add(one.validator)
    found, total = sum(powers[one][1] for one in signed), sum(power for _, power in validators)
    if 3 * found <= thirds * total:
        raise Forged(f"header {block.height}: {found} of {total} votes, more than {thirds} thirds expected")


def _time(written: str) -> Timestamp:
    """RFC 3339 in UTC with up to nine digits behind the point."""
    whole, _, rest = written.removesuffix("Z").partition(".")
    return Timestamp(timegm(strptime(whole, "%Y-%m-%dT%H:%M:%S")), int(rest.ljust(9, "0")[:9]) if rest else 0)


def _block_id(written: Any) -> BlockId:
    parts = written.get("parts") or {}
    return BlockId(
        bytes.fromhex(written["hash"]), _Parts(int(parts.get("total") or 0), bytes.fromhex(parts.get("hash") or ""))
    )


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
        """`trusted` is a height and the hash of its header. Raises `Forged` if the primary shows another."""
        self._chain_id, self._clock, self._settings = chain_id, clock, settings
        self._primary, self._witnesses = primary, witnesses
        height, digest = trusted
        first = self._fetch(height)
        if first.hash != digest:
            raise Forged(f"header {height}: hash {digest.hex()} expected, found {first.hash.hex()}")
        check_commit(first)
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
            check_commit(candidate)
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
        check_form(block, self._chain_id, height)
        return block

    def _check_time(self, block: LightBlock, trusted: LightBlock) -> None:
        if block.time.ms <= trusted.time.ms or block.time.ms / 1000 > self._clock.now() + self._settings.drift_s:
            raise Forged(f"header {block.height}: its time does not lie between the trusted one's and now")


def follows(trusted: LightBlock, block: LightBlock) -> bool:
    """Return whether a well-signed block is believed because of the trusted one. If not, a header between them is
    needed."""
    if block.height == trusted.height + 1:
        return block.validators_hash == trusted.next_validators_hash
    try:
        check_power(block, trusted.validators, 1)
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
            check_form(other, chain_id, block.height)
            check_commit(other)
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
    """Header, votes and validators of a height, as the endpoint tells. Raises `Malformed` or `Unavailable`."""
    try:
        signed = endpoint.call("commit", height=str(height))["signed_header"]
        validators: list[Any] = []
        for page in range(1, VALIDATORS_MAX // _PAGE + 1):
            answer = endpoint.call("validators", height=str(height), page=str(page), per_page=str(_PAGE))
            validators += answer["validators"]
            if len(validators) >= int(answer["total"]):
                break
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(f"{endpoint.name}: not a header: {error}") from error
    return LightBlock.parse(signed, validators)
