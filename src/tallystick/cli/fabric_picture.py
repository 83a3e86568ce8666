"""Trees of a fabric as text and as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

ROW, COLUMN, MARGIN = 34, 190, 20


@dataclass(frozen=True)
class TreeNode:
    """`way` is how one gets there from the node above: a port."""

    text: str
    way: str = ""
    below: Sequence[TreeNode] = ()
    is_host: bool = False


def draw_text(node: TreeNode) -> list[str]:
    """A line for each, hung below one another."""
    return [node.text, *_hang(node, "")]


def _hang(node: TreeNode, indent: str) -> Iterator[str]:
    for number, one in enumerate(node.below, 1):
        is_last = number == len(node.below)
        yield f"{indent}{'└' if is_last else '├'}─{one.way}─ {one.text}"
        yield from _hang(one, indent + ("   " if is_last else "│  "))


def draw_svg(node: TreeNode, title: str) -> str:
    """The same from left to right; every leaf has a row of its own."""
    parts: list[str] = []
    rows = iter(range(1 << 20))

    def place(one: TreeNode, depth: int) -> float:
        below = [(child, place(child, depth + 1)) for child in one.below]
        y = sum(at for _, at in below) / len(below) if below else MARGIN + ROW * (next(rows) + 1)
        x = MARGIN + COLUMN * depth
        for child, at in below:
            parts.append(f'<path d="M{x + 90} {y} C{x + 140} {y} {x + 140} {at} {x + COLUMN} {at}"/>')
            parts.append(f'<text class="way" x="{x + COLUMN - 8}" y="{at - 5}">{escape(child.way)}</text>')
        kind = "host" if one.is_host else "switch"
        parts.append(f'<rect class="{kind}" x="{x}" y="{y - 12}" width="90" height="24" rx="5"/>')
        parts.append(f'<text x="{x + 45}" y="{y + 4}">{escape(one.text)}</text>')
        return y

    place(node, 0)
    width, height = MARGIN * 2 + COLUMN * (_depth(node) + 1), MARGIN * 2 + ROW * (next(rows) + 1)
    style = (
        "text{font:11px sans-serif;text-anchor:middle}.way{text-anchor:end;fill:#666}path{fill:none;stroke:#888}"
        ".switch{fill:#dbe8f6;stroke:#46a}.host{fill:#e5f3dc;stroke:#5a3}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{style}</style>", *parts, "</svg>", ""])


def _depth(node: TreeNode) -> int:
    return 1 + max(map(_depth, node.below), default=-1)
