"""How a chain is: heights and rounds, not processes, and who differs.

A validator whose application gave a wrong result stays up and answers, and a halted chain has four healthy processes;
only heights tell. Each validator is asked for its height, its consensus round and its signed checkpoint of the greatest
height that all of them have; the text that most of them signed is right, and who signed another is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tallystick.errors import Forged, Malformed, TallystickError
from tallystick.ledger.cometbft.rpc import Endpoint, Endpoints
from tallystick.trust.checkpoint import ledger_verifiers
from tallystick.trust.notes import Note
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


@dataclass(frozen=True)
class ChainHealth:
    validators: tuple[ValidatorHealth, ...]
    height: int
    threshold: int

    @property
    def verdict(self) -> str:
        """In words: whether it goes on, and whether it could lose one more."""
        good = sum(one.verdict == "ok" for one in self.validators)
        if good < self.threshold:
            return f"halted or unproved: {self.threshold} validators are needed, {good} are well"
        if good == self.threshold and good < len(self.validators):
            return "it goes on, and may lose no other validator"
        return "it goes on"


def look(endpoints: Endpoints, trust: TrustFile) -> ChainHealth:
    """Ask every validator; never raises for one of them."""
    found = {endpoint: _heights(endpoint) for endpoint in endpoints.all}
    heights = [facts[0] for facts in found.values() if facts is not None]
    newest, common = max(heights, default=0), min(heights, default=0)
    texts = {endpoint: _signed(endpoint, common, trust) for endpoint, facts in found.items() if facts is not None}
    right = Counter(text for text in texts.values() if text).most_common(1)
    validators = []
    for endpoint, facts in found.items():
        if facts is None:
            validators.append(ValidatorHealth(endpoint.name, None, "–", 0, "away"))
            continue
        height, consensus, peers = facts
        text = texts[endpoint]
        if not text:
            verdict = "unsigned"
        elif text != right[0][0]:
            verdict = "differs"
        else:
            verdict = "behind" if newest - height > BEHIND_BLOCKS else "ok"
        validators.append(ValidatorHealth(endpoint.name, height, consensus, peers, verdict))
    return ChainHealth(tuple(validators), newest, trust.ledger_threshold)


def _heights(endpoint: Endpoint) -> tuple[int, str, int] | None:
    try:
        height = int(endpoint.ask("status", timeout_s=ANSWER_S)[1])
        state = endpoint.call("consensus_state", ANSWER_S)["round_state"]["height/round/step"]
        peers = int(endpoint.call("net_info", ANSWER_S)["n_peers"])
    except (TallystickError, KeyError, TypeError, ValueError):
        return None
    return height, str(state), peers


def _signed(endpoint: Endpoint, height: int, trust: TrustFile) -> str:
    """The checkpoint's text at `height`, if a key of the trust file signed it; else empty."""
    try:
        note = Note.decode(endpoint.ask("note", height, timeout_s=ANSWER_S))
        note.verify(ledger_verifiers(trust))
    except (Forged, Malformed, TallystickError, TypeError):
        return ""
    return note.text
