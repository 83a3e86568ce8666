"""What a process counts of itself, as its `/metrics` tells it: numbers by name, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import Metric


def read_counts(text: str, part: str) -> dict[str, Any]:
    """Each family without the name of the `part` that counted it: a number, or numbers by label."""
    from prometheus_client.parser import text_string_to_metric_families

    families = [one for one in text_string_to_metric_families(text) if one.samples]
    return {one.name.removeprefix("tally_").removeprefix(f"{part}_"): _reading(one) for one in families}


def _reading(family: Metric) -> Any:
    """A number, or numbers by label; of durations the mean."""
    found: dict[str, float] = {}
    counts = {(*one.labels.values(),): one.value for one in family.samples if one.name.endswith("_count")}
    for one in family.samples:
        if family.type != "histogram" or one.name.endswith("_sum"):
            value = one.value if family.type != "histogram" else one.value / max(1, counts[*one.labels.values(),])
            found[", ".join(one.labels.values())] = round(value, 4) if value % 1 else int(value)
    return found[""] if [*found] == [""] else found


def by_label(value: Any) -> Any:
    """What a table shows of it: labels that counted something."""
    if not isinstance(value, dict):
        return value
    return ", ".join(f"{label} {number}" for label, number in value.items() if number) or 0
