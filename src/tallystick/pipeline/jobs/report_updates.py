"""The report's section on updates: what was released, how far campaigns came and whether their counts hold, and what
runs where."""

from __future__ import annotations

from typing import Any

from tallystick.page.html import Html, card, section, table, tag
from tallystick.page.svg import amount, bars, many
from tallystick.pipeline.jobs.report_data import Tables, Updates

_SHOWN_MAX = 50  # the tables have all
_AGREES = {None: ("not recounted", "mark notice"), True: ("agree", None), False: ("disagree", "mark alarm")}


def update_section(updates: Updates, tables: Tables) -> Html:
    names = {row["image"]: row["target"] for row in updates.releases}
    found = many(len(updates.findings), "finding") + " about them, below" if updates.findings else "nothing amiss"
    lead = f"{many(len(updates.releases), 'release')}, {many(len(updates.campaigns), 'campaign')};"
    lead += f" {many(updates.ecus, 'ECU')} of {many(updates.vehicles, 'vehicle')}; {found}."
    cards = []
    if updates.campaigns:
        rows = [_campaign(row, tables) for row in updates.campaigns[-_SHOWN_MAX:]]
        shown = table(["Campaign", "Images", "State", "Phase", "Reported", "Recounted", "Both"], rows)
        cards.append(card("Campaigns, as the Director reports them and as they were recounted", shown, wide=True))
    if updates.running:
        shown = bars([(_name(image, names), count) for image, count in updates.running.most_common(12)])
        cards.append(card("Vehicles by image", shown))
    if updates.releases:
        newest = sorted(updates.releases, key=lambda row: -row["height"])[:_SHOWN_MAX]
        rows = [_release(row, updates.running[row["image"]]) for row in newest]
        shown = table(["Target", "Height", "State", "Vehicles"], rows, numbers=(1, 3))
        cards.append(card("Releases, newest first", shown))
    return section(lead, cards)


def _name(image: str, names: dict[str, str]) -> str:
    return names.get(image) or (f"{image[:16]}…, no release" if image else "an ECU never heard")


def _campaign(row: dict[str, Any], tables: Tables) -> list[Any]:
    says, mark = _AGREES[row["agrees"]]
    return [
        tag("code", tables.name(row["campaign"]), class_="short", title=row["campaign"]),
        ", ".join(row["images"]) or "diagnosis",
        row["status"],
        f"{row['phase']} of {row['phases']}",
        f"{amount(row['told_succeeded'])} succeeded, {amount(row['told_failed'])} failed",
        f"{amount(row['succeeded'])} succeeded, {amount(row['failed'])} failed",
        tag("span", says, class_=mark),
    ]


def _release(row: dict[str, Any], vehicles: int) -> list[Any]:
    state = f"withdrawn at {row['withdrawn']}" if row["withdrawn"] else "live"
    return [tag("span", row["target"], title=row["image"]), amount(row["height"]), state, amount(vehicles)]
