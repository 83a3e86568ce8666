"""*Updates*: images that were released or withdrawn, and how far campaigns spread them, from the replayed ledger."""

from __future__ import annotations

from tallystick import wire
from tallystick.console.layout import command, facts, heading, lines, nothing, part
from tallystick.console.marks import bad, checked, code, short, warning, when
from tallystick.console.page import Page
from tallystick.console.pages.ledger import in_words
from tallystick.console.visit import LINES, Visit
from tallystick.errors import Misuse
from tallystick.ledger.contracts.firmware import CAMPAIGNS, RELEASES, CampaignRow, CampaignStatus, ReleaseRow
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.engine import AuditItem, Query
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import amount, many
from tallystick.trust.campaign import WHOLE, Phase

_STEPS = (EntryKind.CAMPAIGN, EntryKind.REPORT_CAMPAIGN, EntryKind.STOP_CAMPAIGN, EntryKind.RESUME_CAMPAIGN)
_RELEASE = ["image", "topic", "released at", "state", "author"]
_WHY = {
    CampaignStatus.DONE: "later vehicles still fall in",
    CampaignStatus.STOPPED: "by somebody's word",
    CampaignStatus.FAILED: "it stopped itself: one failure too many",
    CampaignStatus.WITHDRAWN: "it stopped itself: an image was withdrawn",
}


def show_updates(visit: Visit) -> Html:
    """Campaigns, and releases, newest first."""
    campaigns = sorted(visit.mirror.scan(CAMPAIGNS), key=lambda one: -one[1].height)
    releases = sorted(visit.mirror.scan(RELEASES), key=lambda one: -max(one[1].height, one[1].withdrawn))
    if not campaigns and not releases:
        return join(heading("Updates"), nothing("Nothing was released yet.", command("tally ota release --help")))
    live = sum(not row.withdrawn for _, row in releases)
    told = f"{many(live, 'live release')}, {len(releases) - live} withdrawn, {many(len(campaigns), 'campaign')}. "
    lead = told, "Counts of vehicles are the Director's word, which the contract held to its order and bounds."
    ran = [_campaign(visit, token, name, row) for (token, name), row in visit.part_of(campaigns)]
    came = [_release(visit, token, image, row) for (token, image), row in visit.part_of(releases)]
    return join(
        heading("Updates", lead),
        part("Campaigns", lines(["campaign", "topic", "begun at", "state", "phase", "vehicles"], ran, "None.")),
        part("Releases", lines(_RELEASE, came, "None.")),
        visit.ways_on(max(len(campaigns), len(releases))),
    )


def _campaign(visit: Visit, token: bytes, campaign: bytes, row: CampaignRow) -> list[object]:
    place = visit.link(short(campaign), f"updates/{token.hex()}/{campaign.hex()}")
    phase = f"{row.phase + 1} of {len(row.phases)}, {_share(row.current)}"
    return [place, visit.topic(token), visit.block(row.height), _state(row), phase, _counts(row)]


def _share(phase: Phase) -> str:
    return f"{phase.share * 100 / WHOLE:g} %"


def _counts(row: CampaignRow) -> str:
    return f"{amount(row.succeeded)} succeeded, {amount(row.failed)} failed"


def _state(row: CampaignRow) -> Html:
    status = CampaignStatus(row.status)
    mark = checked if row.share else warning if status == CampaignStatus.STOPPED else bad
    return mark(status.name.lower())


def _release(visit: Visit, token: bytes, image: bytes, row: ReleaseRow) -> list[object]:
    state = (bad("withdrawn"), " at ", visit.block(row.withdrawn)) if row.withdrawn else checked("live")
    place = tag("span", short(image), id=image.hex())
    return [place, visit.topic(token), visit.block(row.height), state, visit.principal(row.author)]


def show_campaign(visit: Visit) -> Html:
    token, campaign = (_identifier(visit.parameters[name]) for name in ("token", "campaign"))
    row = visit.mirror.row(CAMPAIGNS(token, campaign))
    if row is None:
        raise Misuse(f"no campaign {campaign.hex()} on this ledger", hint="the page of updates lists them")
    told = {
        "state": (_state(row), " ", _WHY.get(CampaignStatus(row.status))),
        "topic": visit.topic(token),
        "begun at": visit.block(row.height),
        "phase": (f"{row.phase + 1} of {len(row.phases)}, open since ", when(row.opened_ms)),
        "vehicles": f"{_counts(row)} ({amount(row.forgiven)} of them forgiven), in {many(row.reports, 'report')}",
        "manifests counted": code(row.manifests) if row.reports else None,
    }
    images = [
        _release(visit, owner, image, found)
        for owner, image in row.images
        if (found := visit.mirror.row(RELEASES(owner, image))) is not None
    ]
    history = [_done(visit, one) for one in _history(visit, token, campaign, row.height)]
    phases = [_phase(number, Phase(*one), row) for number, one in enumerate(row.phases)]
    columns = ["phase", "reaches", "opens the next with", "stops with", "soaks", "state"]
    name, turn = campaign.hex(), "stop" if row.share else "resume"
    act = command(f"tally ota campaign show {name}"), command(f"tally ota campaign {turn} {name}")
    return join(
        heading(f"Campaign {name[:12]}…"),
        facts(told),
        part("Phases", lines(columns, phases, "None.")),
        part("Images", lines(_RELEASE, images, "None: a diagnosis.")),
        part("What was done", lines(["height", "time", "author", "entry"], history, "Nothing.")),
        part("To act", *act),
    )


def _done(visit: Visit, item: AuditItem) -> list[object]:
    return [visit.block(item.height), when(item.time_ms), visit.principal(item.author), in_words(visit, item)]


def _phase(number: int, phase: Phase, row: CampaignRow) -> list[object]:
    is_over = number < row.phase or row.status == CampaignStatus.DONE
    state = "passed" if is_over else "open" if number == row.phase else "to come"
    reach = f"{_share(phase)}, at most {many(phase.vehicles, 'vehicle')}"
    goal, end = f"{amount(phase.least_succeeded)} succeeded", f"{amount(phase.most_failed + 1 + row.forgiven)} failed"
    return [number + 1, reach, goal, end, amount(phase.soak_ms / 1000, "seconds"), state]


def _history(visit: Visit, token: bytes, campaign: bytes, begun: int) -> list[AuditItem]:
    """The newest entries that made the campaign what it is."""
    found = [
        item
        for kind in _STEPS
        for item in visit.mirror.audit(Query(kind=int(kind), first_height=begun, most=1 << 20))
        if [*item.fields[1:3]] == [token, campaign]
    ]
    return sorted(found, key=lambda item: (item.height, item.index), reverse=True)[:LINES]


def _identifier(text: str) -> bytes:
    if not wire.is_identifier(text):
        raise Misuse(f"an identifier of 32 digits expected, found {text[:40]!r}", hint="the page of updates lists them")
    return bytes.fromhex(text)


def _is_there(visit: Visit) -> bool:
    return bool(visit.mirror.scan(RELEASES, most=1)) or bool(visit.mirror.scan(CAMPAIGNS, most=1))


PAGES = (
    Page("updates", "Updates", show_updates, in_menu=True, is_there=_is_there),
    Page("updates/{token}/{campaign}", "Campaign", show_campaign),
)
