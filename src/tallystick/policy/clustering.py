"""Into which parts a topic's content is cut, so that each can be routed by itself (thesis 5.1.4, 8.1, 8.2).

Every part costs whoever routes something: on the fabric a flow, with a rule at each switch on its way. Every part that
is too coarse brings subscribers what they did not want. An owner chooses for each topic, and says how many parts there
may be at the most. *Even*: all strings of one length, whatever anybody wants: of a joint code (8.2 calls that joint),
or of the one attribute that serves best where the code has strings for each attribute. *Greedy*: the part is halved
again and again where most deliveries are in doubt, by the interests that stand. *Exact*: the same, until no interest is
in doubt anywhere, or the code's strings end. Neighbours that are wanted by the same interests become one again.

Invariant: the parts cover all content, and none overlaps another, so that nobody misses anything whatever was chosen.
Interests that come later get every part that they touch. Whoever cuts here sees no content: a part counts by its volume
and by how many want something of it. `experiments/fabric/clustering` measures with content.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tallystick.errors import Misuse
from tallystick.policy.formula import Formula
from tallystick.policy.subspaces import SubspaceCode
from tallystick.policy.topic_code import Subspace, TopicCode
from tallystick.wire import is_identifier, is_number

INTERESTS_MAX = 512  # that are asked; of more, some are chosen, and all still get what they touch
PARTS_MAX = 95  # with one more for what no label describes, a host can be told all of them


class Clustering(StrEnum):
    EVEN = "even"
    GREEDY = "greedy"
    EXACT = "exact"


@dataclass(frozen=True)
class Cutting:
    """What an owner chooses for a topic."""

    how: Clustering = Clustering.EVEN
    parts_max: int = 8

    @classmethod
    def read(cls, text: str) -> Cutting:
        """From a text such as `greedy:32`. Raises `Misuse`."""
        how, _, most = text.partition(":")
        if how not in [*Clustering] or not is_number(most) or not 1 <= int(most) <= PARTS_MAX:
            hint = f"even:8, greedy:32 or exact:{PARTS_MAX}; at most {PARTS_MAX} parts"
            raise Misuse(f'clustering "{text}": a way and a number of parts expected', hint=hint)
        return cls(Clustering(how), int(most))


def read_cuttings(text: str) -> dict[bytes, Cutting]:
    """By topic, from `even:8 TOKEN=greedy:32 …`; what has no token is for all others. Raises `Misuse`."""
    found = {}
    for part in text.split():
        token, _, choice = part.rpartition("=")
        if token and not is_identifier(token):
            raise Misuse(f'clustering "{part}": TOKEN=WAY:NUMBER expected', hint="tally topic show tells the token")
        found[bytes.fromhex(token)] = Cutting.read(choice)
    return found


def cut(code: TopicCode, interests: Iterable[Formula], choice: Cutting) -> list[Subspace]:
    """The parts of a topic's content."""
    wanted = list(interests)
    wanted = wanted[:: 1 + len(wanted) // INTERESTS_MAX]
    cuts = [(number, _parts(one, wanted, choice)) for number, one in enumerate(code.codes)]
    number, parts = min(cuts, key=lambda one: sum(2.0 ** -len(part) * len(who) for part, who in one[1].items()))
    return [(number, part) for part in sorted(parts)]


Wanted = Mapping[int, bool | None]  # by interest that touches a part: whether halving it would tell no more


def _parts(code: SubspaceCode, interests: Sequence[Formula], choice: Cutting) -> dict[str, Wanted]:
    if choice.how is Clustering.EVEN:
        length = min(choice.parts_max.bit_length() - 1, code.length)
        names = [format(number, f"0{length}b") if length else "" for number in range(1 << length)]
        return {one: _touching(code, interests, one, range(len(interests))) for one in names}
    done: dict[str, Wanted] = {}
    waiting = [(-1.0, "", _touching(code, interests, "", range(len(interests))))]  # the most doubtful first
    while waiting:
        doubt, part, who = heapq.heappop(waiting)
        if not doubt or len(part) == code.length or len(done) + len(waiting) + 2 > choice.parts_max:
            done[part] = who
            continue
        for half in (part + "0", part + "1"):
            inside = _touching(code, interests, half, who)
            heapq.heappush(waiting, (_doubt(half, inside), half, inside))
    return _joined(done)


def _doubt(part: str, who: Wanted) -> float:
    """How much is delivered there that may not be wanted, the most the least; content is likelier where many look."""
    return -(2.0 ** -len(part)) * len(who) * sum(one is None for one in who.values())


def _touching(code: SubspaceCode, interests: Sequence[Formula], part: str, who: Iterable[int]) -> Wanted:
    found = {number: code.possible(interests[number], part) for number in who}
    return {number: possible for number, possible in found.items() if possible is not False}


def _joined(parts: dict[str, Wanted]) -> dict[str, Wanted]:
    """Halves that the same interests touch become one again."""
    for length in range(max(map(len, parts)), 0, -1):
        for part in [one for one in parts if len(one) == length and one.endswith("0")]:
            other = part[:-1] + "1"
            if other in parts and parts[part].keys() == parts[other].keys():
                parts[part[:-1]] = parts.pop(part)
                del parts[other]
    return parts


def show_part(part: Subspace) -> str:
    """As text: the string, behind the number of its code where that is not the first."""
    return f"{part[0]}/{part[1]}" if part[0] else part[1]


def read_part(text: str) -> Subspace:
    number, _, string = text.rpartition("/")
    return int(number) if is_number(number) else 0, string
