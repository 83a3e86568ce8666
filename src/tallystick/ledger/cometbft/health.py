"""How a chain is: heights and rounds, not processes, and who differs.

A validator whose application gave a wrong result stays up and answers, and a halted chain has four healthy processes;
only heights tell. Each validator is asked for its height, its consensus round and its signed checkpoints of the heights
at which the others stand. Where texts of one height differ, the one that most of them signed is right and who signed
another is named; where no text has more signers than every other, all of them differ, and the sides are named.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.errors import Forged, Malformed, TallystickError
from tallystick.ledger.cometbft.rpc import Endpoints, RpcEndpoint
from tallystick.trust.notes import Note, ledger_verifiers
from tallystick.trust.trustfile import TrustFile

BEHIND_BLOCKS = 10  # a validator this far behind the others does not follow them
ANSWER_S = 3.0


@dataclass(frozen=True)
class ValidatorHealth:
    name: str
    height: int | None  # None: it does not answer
    round: str  # height/round/step of its consensus
    peers: int
    verdict: str  # ok, away, behind, differs, unsigned
    key: str | None = None  # the identifier of its note key, as `vouched_by` names who signed; None: it signed nothing


@dataclass(frozen=True)
class ChainHealth:
    validators: tuple[ValidatorHealth, ...]
    height: int
    threshold: int
    split_height: int | None = None  # the lowest at which they signed different checkpoints, as far as was asked
    sides: tuple[tuple[str, ...], ...] = ()  # who signed the same there, the most first

    @property
    def verdict(self) -> str:
        """In words: whether it goes on, and whether it could lose one more."""
        good = sum(one.verdict == "ok" for one in self.validators)
        if good < self.threshold:
            said = f"halted or unproved: {self.threshold} validators are needed, {good} are well"
            sides = " against ".join(" and ".join(side) for side in self.sides)
            return f"{said}; at height {self.split_height} {sides}" if sides else said
        if good == self.threshold and good < len(self.validators):
            return "it goes on, and may lose no other validator"
        return "it goes on"


def look(endpoints: Endpoints, trust: TrustFile) -> ChainHealth:
    """Ask every validator; never raises for one of them."""
    found = {endpoint: _heights(endpoint) for endpoint in endpoints.all}
    reached = {endpoint: facts[0] for endpoint, facts in found.items() if facts is not None}
    newest = max(reached.values(), default=0)
    keys: dict[RpcEndpoint, str] = {}
    split_height, sides, unsigned = _compare(reached, trust, keys)
    wrong = sides[1:] if sides and len(sides[0]) > len(sides[1]) else sides
    validators = []
    for endpoint, facts in found.items():
        if facts is None:
            validators.append(ValidatorHealth(endpoint.name, None, "–", 0, "away"))
            continue
        height, consensus, peers = facts
        if endpoint in unsigned:
            verdict = "unsigned"
        elif any(endpoint in side for side in wrong):
            verdict = "differs"
        else:
            verdict = "behind" if newest - height > BEHIND_BLOCKS else "ok"
        validators.append(ValidatorHealth(endpoint.name, height, consensus, peers, verdict, keys.get(endpoint)))
    names = tuple(tuple(one.name for one in side) for side in sides)
    return ChainHealth(tuple(validators), newest, trust.ledger_threshold, split_height, names)


def _compare(
    reached: dict[RpcEndpoint, int], trust: TrustFile, keys: dict[RpcEndpoint, str]
) -> tuple[int | None, list[list[RpcEndpoint]], set[RpcEndpoint]]:
    """Return the lowest height at which they differ (None where they agree), the sides, and who signs nothing. Whose
    key was seen is written to `keys`."""
    unsigned: set[RpcEndpoint] = set()
    for height in sorted(set(reached.values())):
        signers: dict[str, list[RpcEndpoint]] = {}
        for endpoint in [one for one, top in reached.items() if top >= height and one not in unsigned]:
            text, key = _signed(endpoint, height, trust)
            if text:
                keys[endpoint] = key
                signers.setdefault(text, []).append(endpoint)
            elif reached[endpoint] == height:
                unsigned.add(endpoint)
        if len(signers) > 1:
            return height, sorted(signers.values(), key=len, reverse=True), unsigned
    return None, [], unsigned


def _heights(endpoint: RpcEndpoint) -> tuple[int, str, int] | None:
    try:
        height = int(endpoint.ask("status", timeout_s=ANSWER_S)[1])
        state = endpoint.call("consensus_state", ANSWER_S)["round_state"]["height/round/step"]
        peers = int(endpoint.call("net_info", ANSWER_S)["n_peers"])
    except (TallystickError, KeyError, TypeError, ValueError):
        return None
    return height, str(state), peers


def _signed(endpoint: RpcEndpoint, height: int, trust: TrustFile) -> tuple[str, str]:
    """Return the checkpoint's text at `height` and whose key of the trust file signed it, both empty if none did."""
    try:
        note = Note.decode(endpoint.ask("note", height, timeout_s=ANSWER_S))
        signed = note.verify(ledger_verifiers(trust))
    except (Forged, Malformed, TallystickError, TypeError):
        return "", ""
    return note.text, signed[0].verifier.key_id.hex()
