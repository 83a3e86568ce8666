"""From text to formula.

    formula    = conjunction {("||" | "or") conjunction}
    conjunction = term {("&&" | "and") term}
    term       = "(" formula ")" | count "of" "(" formula {"," formula} ")" | comparison
    comparison = name                                   a flag that is true
               | name "::" value                        a category or string
               | name operator literal [also turned round, and as literal < name <= literal]
               | name "in" "(" literal {"," literal} ")" | name "in" literal ".." literal
    operator   = "==" | "=" | "!=" | "<" | "<=" | ">" | ">="
    literal    = word | "quoted text" | number | date such as 2026-01-31

There is no negation: a principal that lacks an attribute could leave it out of its key, so no lock can ask for that.
`!=` is taken where it says something positive: another value of a closed category, a number below or above.
Every mistake is a `Misuse` that names its position (counted from 1) and, where there is one, a remedy. The work is
bounded by `TEXT_MAX` characters and the bounds of `tallystick.policy.formula`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import NoReturn, TypeVar

from tallystick.errors import Misuse
from tallystick.policy.attribute import Attribute, AttributeKind, Value
from tallystick.policy.formula import (
    DEPTH_MAX,
    Formula,
    FormulaGate,
    Interval,
    Leaf,
    Node,
    OneOf,
    Within,
    all_of,
    any_of,
)
from tallystick.policy.space import AttributeSpace
from tallystick.wire import is_number

TEXT_MAX = 16 * 1024

T = TypeVar("T")

_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}(?![\w-]))"
    r"|(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w-]))"
    r'|(?P<quoted>"(?:[^"\\]|\\["\\])*")'
    r"|(?P<word>[A-Za-z0-9_](?:[A-Za-z0-9_-]|\.(?!\.))*)"
    r"|(?P<sign>::|\|\||&&|\.\.|[<>!=]=|[<>=!(),])"
    r"|(?P<bad>\S))"
)
_TURNED = {"==": "==", "=": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATION = "a key cannot show what its holder lacks; list the values that are allowed, or use != where it is closed"


@dataclass(frozen=True)
class _Token:
    kind: str  # date, number, quoted, word, sign, end
    text: str
    position: int


def parse(text: str, space: AttributeSpace, what: str = "formula") -> Formula:
    """The formula that `text` writes down, typed by `space`. Raises `Misuse`.

    >>> from tallystick.policy.attribute import category, integer
    >>> acme = AttributeSpace.of("acme", category("role", ["garage", "insurer"]), integer("clearance", 8))
    >>> parse("role::insurer && clearance >= 3", acme) == parse("(clearance>2) and role == insurer", acme)
    True
    """
    if len(text) > TEXT_MAX:
        raise Misuse(f"{what}: {len(text)} characters, at most {TEXT_MAX} expected")
    reader = _Reader(text, space, what)
    try:
        return Formula.of(reader.whole(), space)
    except Misuse as error:
        if str(error).startswith(f"{what}, position"):
            raise
        raise Misuse(f"{what}: {error}", hint=error.hint) from error


class _Reader:
    def __init__(self, text: str, space: AttributeSpace, what: str) -> None:
        self._space, self._what = space, what
        self._tokens = list(self._split(text))
        self._at = 0

    def _split(self, text: str) -> list[_Token]:
        tokens, end = [], 0
        while match := _TOKEN.match(text, end):
            kind = match.lastgroup or ""
            token = _Token(kind, match[kind], match.start(kind) + 1)
            if kind == "bad":
                self._fail(f"unexpected {token.text!r}", token, "values with spaces or signs go into double quotes")
            tokens.append(token)
            end = match.end()
        return [*tokens, _Token("end", "", len(text) + 1)]

    def _fail(self, message: str, token: _Token, hint: str | None = None) -> NoReturn:
        raise Misuse(f"{self._what}, position {token.position}: {message}", hint=hint)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += token.kind != "end"  # behind which there is nothing
        return token

    def _takes(self, *texts: str) -> bool:
        """Whether the next token is one of these signs or words; it is then taken."""
        found = self._next.kind in ("sign", "word") and self._next.text in texts
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            self._fail(f'expected "{text}", found {_shown(self._next)}', self._next)

    def _listed(self, read: Callable[[], T], *separators: str) -> list[T]:
        """What `read` reads, as often as a separator follows."""
        found = [read()]
        while self._takes(*separators):
            found.append(read())
        return found

    def whole(self) -> Node:
        node = self._any(1)
        if self._next.kind != "end":
            self._fail(f"expected && or ||, found {_shown(self._next)}", self._next, "join comparisons by && and ||")
        return node

    def _any(self, depth: int) -> Node:
        if depth > DEPTH_MAX:
            self._fail(f"nested deeper than {DEPTH_MAX} levels", self._next)
        parts = self._listed(lambda: self._all(depth), "||", "or")
        return parts[0] if len(parts) == 1 else any_of(parts)

    def _all(self, depth: int) -> Node:
        parts = self._listed(lambda: self._term(depth), "&&", "and")
        return parts[0] if len(parts) == 1 else all_of(parts)

    def _term(self, depth: int) -> Node:
        token, after = self._next, self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        if self._takes("("):
            node = self._any(depth + 1)
            self._expect(")")
            return node
        if (token.kind == "sign" and token.text == "!") or (token.kind == "word" and token.text == "not"):
            self._fail("negation cannot be enforced", token, _NEGATION)
        if token.kind == "number" and after.kind == "word" and after.text == "of":
            return self._threshold(depth)
        if token.kind == "word" and not is_number(token.text[0]):
            return self._comparison()
        if token.kind not in ("number", "date", "quoted", "word"):
            self._fail(f"expected a comparison, found {_shown(token)}", token)
        return self._turned()

    def _threshold(self, depth: int) -> Node:
        count = self._take()
        self._take()
        self._expect("(")
        parts = self._listed(lambda: self._any(depth + 1), ",")
        self._expect(")")
        if not is_number(count.text) or not 1 <= int(count.text[:9]) <= len(parts):
            self._fail(f"{count.text} of {len(parts)}: the count lies between 1 and {len(parts)}", count)
        return FormulaGate(int(count.text), tuple(parts))

    def _attribute(self) -> tuple[Attribute, _Token]:
        token = self._take()
        if token.kind != "word":
            self._fail(f"expected an attribute, found {_shown(token)}", token)
        try:
            return self._space.resolve(token.text), token
        except Misuse as error:
            self._fail(str(error), token, error.hint)

    def _comparison(self) -> Node:
        attribute, token = self._attribute()
        if self._takes("::"):
            return self._texts(attribute, token, [self._take()])
        if self._takes("in"):
            return self._member(attribute, token)
        operator = self._operator()
        if operator is not None:
            return self._compared(attribute, token, operator, self._take())
        if attribute.kind is not AttributeKind.FLAG:
            self._fail(f'"{token.text}" is not a flag', token, f"compare it: {_example(attribute)}")
        return OneOf(attribute.name, ("true",))

    def _turned(self) -> Node:
        """literal operator name [operator literal]"""
        literal, operator = self._take(), self._operator()
        if operator is None:
            self._fail(f"expected a comparison, found {_shown(literal)}", literal, "attributes begin with a letter")
        attribute, token = self._attribute()
        first = self._compared(attribute, token, _TURNED[operator], literal)
        second = self._operator()
        if second is None:
            return first
        return all_of([first, self._compared(attribute, token, second, self._take())])

    def _operator(self) -> str | None:
        if self._next.kind == "sign" and self._next.text in _TURNED:
            text = self._take().text
            return "==" if text == "=" else text
        return None

    def _member(self, attribute: Attribute, token: _Token) -> Node:
        if self._takes("("):
            found = self._listed(self._take, ",")
            self._expect(")")
            if attribute.is_text:
                return self._texts(attribute, token, found)
            ordinals = [self._ordinal(attribute, one) for one in found]
            return Within(attribute.name, tuple((ordinal, ordinal) for ordinal in ordinals))
        low = self._take()
        self._expect("..")
        high = self._take()
        if attribute.is_text:
            self._fail(f'"{token.text}" has no order', token, f"compare it: {_example(attribute)}")
        ends = self._ordinal(attribute, low), self._ordinal(attribute, high)
        if ends[0] > ends[1]:
            self._fail(f"the range {low.text}..{high.text} is empty", low)
        return Within(attribute.name, (ends,))

    def _compared(self, attribute: Attribute, token: _Token, operator: str, literal: _Token) -> Leaf:
        if attribute.is_text:
            if operator == "==":
                return self._texts(attribute, token, [literal])
            if operator == "!=":
                return self._others(attribute, token, literal)
            self._fail(f'"{token.text}" has no order', token, f"compare it: {_example(attribute)}")
        ordinal, top = self._ordinal(attribute, literal), attribute.top
        intervals: dict[str, tuple[Interval, ...]] = {
            "==": ((ordinal, ordinal),),
            "!=": ((0, ordinal - 1), (ordinal + 1, top)),
            "<": ((0, ordinal - 1),),
            "<=": ((0, ordinal),),
            ">": ((ordinal + 1, top),),
            ">=": ((ordinal, top),),
        }
        return Within(attribute.name, intervals[operator])

    def _others(self, attribute: Attribute, token: _Token, literal: _Token) -> Leaf:
        if attribute.kind is AttributeKind.STRING:
            self._fail(f'"{token.text}" is a string: its other values cannot be listed', token, _NEGATION)
        if attribute.many:
            self._fail(
                f'"{token.text}" may hold many values: having another does not exclude this one', token, _NEGATION
            )
        (excluded,) = self._texts(attribute, token, [literal]).values
        return OneOf(attribute.name, tuple(value for value in attribute.values if value != excluded))

    def _texts(self, attribute: Attribute, token: _Token, found: list[_Token]) -> OneOf:
        if not attribute.is_text:
            self._fail(f'"{token.text}" is a number', token, f"compare it: {_example(attribute)}")
        return OneOf(attribute.name, tuple(self._text(attribute, one) for one in found))

    def _text(self, attribute: Attribute, token: _Token) -> str:
        if token.kind in ("sign", "end"):
            self._fail(f"expected a value, found {_shown(token)}", token)
        try:
            return attribute.text(_unquoted(token))
        except Misuse as error:
            self._fail(str(error), token, error.hint)

    def _ordinal(self, attribute: Attribute, token: _Token) -> int:
        value: Value = token.text
        if token.kind == "number":
            value = int(token.text) if re.fullmatch(r"-?[0-9]{1,40}", token.text) else float(token.text)
        elif token.kind == "date":
            try:
                value = date.fromisoformat(token.text)
            except ValueError:
                self._fail(f"{token.text} is not a day of any year", token)
        try:
            return attribute.ordinal(value)
        except Misuse as error:
            self._fail(str(error), token, error.hint)


def _unquoted(token: _Token) -> str:
    return re.sub(r"\\(.)", r"\1", token.text[1:-1]) if token.kind == "quoted" else token.text


def _shown(token: _Token) -> str:
    return "the end" if token.kind == "end" else f'"{token.text[:40]}"'


def _example(attribute: Attribute) -> str:
    name = attribute.name.rpartition(".")[2]
    if attribute.values:
        return f"{name}::{attribute.values[0]}"
    return (
        f'{name} == "…"'
        if attribute.kind is AttributeKind.STRING
        else f"{name} >= {attribute.show(attribute.top // 2)}"
    )
