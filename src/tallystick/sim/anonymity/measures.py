"""How well a guess does: the paper's two measures, and those that it lacks.

Accuracy (Eq. 5) counts right answers among all. The paper does not say among all of whom: its .927 is met among the
nodes of M_a, its .988 among all nodes, so both are told. The publisher is not counted, as in Fig. 7. Accuracy says
little alone: where four of five nodes are forwarders, calling nobody a subscriber has .8. Hence precision, recall and
the base rate beside it, and the better of a rule and its inverse: a rule that is wrong in nine of ten cases is an
excellent rule, read the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tallystick.sim.anonymity.graph import Numbers
from tallystick.sim.anonymity.mesh import PUBLISHER, TopicMesh


@dataclass(frozen=True)
class Score:
    accuracy: float  # Eq. 5 over V_a
    accuracy_all: float  # over V
    better: float  # the rule's or its inverse's, over V_a
    better_all: float
    precision: float  # of those named; the base rate where nobody is
    recall: float
    base_rate: float  # |S|/|V_a|
    named: int  # |anonSet| of Eq. 4: whom the attacker takes for a subscriber
    entropy: float  # bits that a node of M_a still hides, on average


def judge(mesh: TopicMesh, guess: Numbers, nodes: int, posterior: Numbers | None = None) -> Score:
    """Hold a guess against the truth. Without a posterior, the attacker has that of its own two classes: it knows the
    scheme, and so how often its rule is right."""
    counted = mesh.role != PUBLISHER
    truth, guess = mesh.subscribers[counted], guess[counted]
    right, named, there = int((truth & guess).sum()), int(guess.sum()), len(truth)
    correct = int((truth == guess).sum())
    base = float(truth.mean()) if there else 0.0
    if posterior is None:
        posterior = np.where(guess, right / max(named, 1), (truth.sum() - right) / max(there - named, 1))
    else:
        posterior = posterior[counted]
    accuracy, accuracy_all = correct / max(there, 1), (correct + nodes - 1 - there) / (nodes - 1)
    # The inverse names all of V_a that the rule does not, and leaves those outside where they are.
    inverse_all = (there - correct + nodes - 1 - there) / (nodes - 1)
    return Score(
        accuracy,
        accuracy_all,
        max(accuracy, 1 - accuracy),
        max(accuracy_all, inverse_all),
        right / named if named else base,
        right / max(int(truth.sum()), 1),
        base,
        named,
        float(entropy(posterior).mean()) if there else 0.0,
    )


def entropy(chance: Numbers) -> Numbers:
    """In bits, of a yes with this chance."""
    inside = np.clip(chance, 1e-12, 1 - 1e-12)
    bits: Numbers = -(inside * np.log2(inside) + (1 - inside) * np.log2(1 - inside))
    return np.where((chance <= 0) | (chance >= 1), 0.0, bits)


def top(suspicion: Numbers, count: int, random: np.random.Generator) -> Numbers:
    """Name the `count` most suspected; among equals any."""
    order = np.lexsort((random.random(len(suspicion)), -suspicion))
    named = np.zeros(len(suspicion), dtype=bool)
    named[order[:count]] = True
    return named
