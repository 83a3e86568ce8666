"""The thesis's figures, shrunken: what they follow from, not how long they took."""

from __future__ import annotations

import csv
import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.crypto.abe import capsule as capsules
from tallystick.crypto.abe import group, sharing
from tallystick.errors import Malformed

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ["fig21", "fig22", "fig23", "fig24", "fig25"]


def load(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module(f"experiments.thesis.{name}")


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_lands_in_its_band(name: str, tmp_path: Path) -> None:
    if not group.available():
        pytest.skip("pymcl has no wheel for Python 3.13")
    figure = load(name)
    assert figure.main(["--small", "--out", str(tmp_path)]) == 0
    with (tmp_path / f"{name}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["scheme"] for row in rows} == {"bsw07", "fabeo"}
    assert all(float(row["cpu_ms"]) > 0 for row in rows)


# --- broken schemes: they still open what they should, and make more than they ought to ---


def wasteful_issue(honest: Any) -> Any:
    """A key of ours with a second part for every trait."""

    def issue(self: Any, holder: bytes, traits: Any, epochs: Any) -> Any:
        key = honest(self, holder, traits, epochs)
        return replace(key, parts={**key.parts, **{b"again" + trait: part for trait, part in key.parts.items()}})

    return issue


def wasteful_keygen(honest: Any) -> Any:
    """BSW07's, with the parts of one attribute more than was asked for."""
    return lambda authority, traits, seed: honest(authority, [*traits, b"more"], seed)


def wasteful_occurrences(_: Any) -> Any:
    """Randomness of its own for every row, as far as may be, though no trait is repeated."""
    return lambda found: (sharing.ShareRow(traits, row % sharing.OCCURRENCES_MAX) for row, traits in enumerate(found))


def wasteful_encapsulate(honest: Any) -> Any:
    """BSW07's, with the last leaf twice."""

    def encapsulate(authority: Any, tree: Any, seed: bytes) -> Any:
        ciphertext, secret = honest(authority, tree, seed)
        return replace(ciphertext, leaves=[*ciphertext.leaves, ciphertext.leaves[-1]]), secret

    return encapsulate


BROKEN = {  # what is wasteful: whose, where it stands, by what it is replaced, which figures show it
    "our key": ("fabeo", "AttributeMasterKey", "issue", wasteful_issue, ["fig21", "fig24", "fig25"]),
    "our capsule": (
        "fabeo",
        "sharing",
        "_with_occurrences",
        wasteful_occurrences,
        ["fig22", "fig23", "fig24", "fig25"],
    ),
    "bsw07's key": ("bsw07", "bsw07", "keygen", wasteful_keygen, ["fig21", "fig24", "fig25"]),
    "bsw07's capsule": ("bsw07", "bsw07", "encapsulate", wasteful_encapsulate, ["fig22", "fig24"]),
}


@pytest.mark.parametrize(
    ("broken", "name"), [(broken, name) for broken, (*_, names) in BROKEN.items() for name in names]
)
def test_a_broken_scheme_misses_the_band(broken: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not group.available():
        pytest.skip("pymcl has no wheel for Python 3.13")
    figure, costs = load(name), load("costs")
    scheme, place, part, wasteful, _ = BROKEN[broken]
    whole = sharing if place == "sharing" else getattr(costs, place)
    monkeypatch.setattr(whole, part, wasteful(getattr(whole, part)))
    capsules.program_for.cache_clear()
    try:
        missed = figure.misses(list(figure.run(4, True)))
    finally:
        capsules.program_for.cache_clear()
    assert missed
    assert all(one.startswith(scheme) for one in missed)


def test_what_is_counted_are_points() -> None:
    if not group.available():
        pytest.skip("pymcl has no wheel for Python 3.13")
    costs = load("costs")
    point = group.encode_point(group.generator1().power(group.scalar(7)))
    assert costs.count_points([point, point]) == 2
    with pytest.raises(Malformed):
        costs.count_points([point, b"\xff" * len(point)])


def test_labels_lie_between_flooding_and_exact_matching(tmp_path: Path) -> None:
    experiment = load("false_positives")
    rows = list(experiment.run(4, True))
    assert experiment.misses(rows) == []
    assert rows == list(experiment.run(4, True))  # a function of the seed
    assert {row.labels for row in rows} == {"flooding", "joint", "each"}
    assert len({(row.attributes, row.together) for row in rows}) == 4
    assert all(row.withheld == 0 for row in rows)
    assert experiment.main(["--small", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "false_positives.csv").exists()
