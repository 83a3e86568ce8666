"""HTML that cannot be injected into: every text is escaped where it is put in, unless it is markup of ours already.

Threat: a topic, a vehicle or a reason that is called `<script>…`. `tag` escapes whatever is not `Html`, and the page's
own policy lets nothing run, load or be sent, should a text ever pass. No script is needed: the page is whole without.
"""

from __future__ import annotations

from html import escape
from typing import Any

_VOID = frozenset({"br", "meta"})
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Html(str):
    """Markup, made by `tag` alone."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """`<name attributes>children</name>`. In names of attributes a trailing underscore is left out, and an inner one
    becomes a hyphen."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = join(*children)
    return Html(f"<{name}{given}>" if name in _VOID and not inner else f"<{name}{given}>{inner}</{name}>")


def join(*children: object) -> Html:
    """Children one after the other, texts escaped. A list stands for its items, None for nothing."""
    return Html("".join(_one(child) for child in children))


def _one(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return str(child)
    if isinstance(child, (list, tuple)):
        return str(join(*child))
    return escape(str(child), quote=True)


def page(title: str, *body: object) -> str:
    """A whole document that needs nothing but itself."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Html(f"<style>{_CSS}</style>"),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def table(columns: list[str], rows: list[list[Any]], *, numbers: tuple[int, ...] = ()) -> Html:
    """A table whose rows become cards on a narrow screen; `numbers` are the columns to align right."""

    def cell(place: int, value: Any) -> Html:
        return tag("td", value, data_label=columns[place], class_="number" if place in numbers else None)

    head = [tag("th", name, class_="number" if place in numbers else None) for place, name in enumerate(columns)]
    lines = [tag("tr", [cell(place, value) for place, value in enumerate(row)]) for row in rows]
    return tag("table", tag("thead", tag("tr", head)), tag("tbody", lines))


def section(lead: str, cards: list[Html]) -> Html:
    """What a section says first, and its cards."""
    return tag("div", tag("p", lead, class_="lead"), tag("div", cards, class_="grid"))


def card(name: str, content: Html, *, wide: bool = False) -> Html:
    return tag("div", tag("h3", name), content, class_="card wide" if wide else "card")


_CSS = """
:root{--paper:#f6f5f1;--card:#fff;--ink:#1d2127;--soft:#5c6470;--rule:#e2e0d9;--one:#2f6690;--two:#3a9a8c;
--three:#c98a1b;--alarm:#b3261e;--warning:#9a6200;--notice:#2f6690;--track:#2f6690;--ground:#eef1f0}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1d2127;--ink:#e7e9ec;--soft:#9aa3af;--rule:#31373f;
--one:#7db4dd;--two:#63c7b6;--three:#e6b14f;--alarm:#ff8a80;--warning:#f0bb5c;--notice:#7db4dd;--track:#7db4dd;
--ground:#171b20}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans",sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1180px;margin:0 auto;padding:32px 24px 64px}
header h1{font-size:28px;line-height:1.2;margin:0 0 4px;font-weight:650;letter-spacing:-.01em}
header p{margin:0;color:var(--soft)}
h2{font-size:20px;line-height:1.3;margin:44px 0 4px;font-weight:650}
h3{font-size:15px;margin:0 0 10px;font-weight:600}
p.lead{margin:0 0 14px;color:var(--soft);max-width:75ch}
nav{margin:20px 0 0;display:flex;flex-wrap:wrap;gap:4px 18px;font-size:15px}
nav a{color:var(--one);text-decoration:none;padding:4px 0}
nav a:hover{text-decoration:underline}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:24px 0 0}
.tile,.card{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.tile{padding:14px 16px}
.tile b{display:block;font-size:26px;line-height:1.2;font-weight:650;font-variant-numeric:tabular-nums;
letter-spacing:-.01em;overflow-wrap:anywhere}
.tile span{color:var(--soft);font-size:14px}
.grid{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:16px}
.card{padding:16px 18px;min-width:0}
.wide{grid-column:1/-1}
figure{margin:0}
.plot{display:grid;grid-template-columns:auto minmax(0,1fr);column-gap:10px}
.plot svg{display:block;width:100%;height:170px}
.ys{display:flex;flex-direction:column;justify-content:space-between;text-align:right;height:170px}
.ys,.xs,.key{font-size:13px;line-height:1;color:var(--soft);font-variant-numeric:tabular-nums}
.ys span:first-child{transform:translateY(-4px)}.ys span:last-child{transform:translateY(4px)}
.xs{grid-column:2;display:flex;justify-content:space-between;padding-top:8px}
.key{display:flex;flex-wrap:wrap;gap:6px 16px;padding-top:14px;line-height:1.2}
.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.key i.dot{border-radius:50%}
.map svg{display:block;width:100%;height:min(62vw,520px);background:var(--ground);border-radius:8px}
.bars{display:grid;grid-template-columns:minmax(0,max-content) minmax(40px,1fr) max-content;gap:8px 12px;
align-items:center;font-size:14px}
.bars .name{overflow-wrap:anywhere;max-width:22ch}
.bars .bar{height:12px;border-radius:3px;background:var(--one);min-width:2px}
.bars .value{font-variant-numeric:tabular-nums;color:var(--soft);text-align:right}
table{width:100%;border-collapse:collapse;font-size:14px;line-height:1.45}
th{text-align:left;font-weight:600;color:var(--soft);padding:6px 14px 8px 0;border-bottom:1px solid var(--rule);
white-space:nowrap}
td{vertical-align:top;padding:10px 14px 10px 0;border-bottom:1px solid var(--rule);overflow-wrap:anywhere}
tr:last-child td{border-bottom:0}
td:last-child,th:last-child{padding-right:0}
.number{text-align:right;font-variant-numeric:tabular-nums}
.mark{display:inline-block;white-space:nowrap;justify-self:start;font-size:13px;font-weight:600;padding:1px 9px;
border-radius:99px;border:1px solid}
.alarm{color:var(--alarm)}.warning{color:var(--warning)}.notice{color:var(--notice)}
.soft{color:var(--soft)}
.short{white-space:nowrap}
code{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.none{border-style:dashed;color:var(--soft)}
.none code{display:block;color:var(--ink);margin-top:8px}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:8px 24px;margin:0;font-size:15px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
footer{margin-top:40px;color:var(--soft);font-size:14px}
@media (max-width:720px){main{padding:20px 16px 48px}header h1{font-size:24px}.grid{grid-template-columns:minmax(0,1fr)}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:10px}
.tile:last-child:nth-child(odd){grid-column:1/-1}.tile b{font-size:22px}.card{padding:14px}
.map svg{height:110vw}
thead{display:none}table,tbody,tr,td{display:block}tr{padding:12px 0;border-bottom:1px solid var(--rule)}
tr:last-child{border-bottom:0}td{display:grid;grid-template-columns:92px minmax(0,1fr);gap:10px;padding:3px 0;border:0}
td.number{text-align:left}td::before{content:attr(data-label);color:var(--soft)}
dl{grid-template-columns:minmax(0,1fr);gap:0}dd{margin-bottom:10px}}
@media print{body{background:#fff}.card,.tile{break-inside:avoid}nav{display:none}}
"""
