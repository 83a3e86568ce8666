"""Which of an identity's topics go over another carrier than the rest: the file `carriers.json` in its folder.

    {"mesh://city": {"url": …, "node": certificate, "topics": {name: token, …}, "settings": {…}}}

Threat: a topic that belongs on a mesh and goes out elsewhere tells everybody what the mesh was to hide. So a choice
holds for whoever opens the folder, until its holder takes it back; a topic that is chosen is found by its name and by
its token; and what is asked for by name (`carrier="mesh://…"`) goes there or nowhere. All questions about such a topic
go to the carrier's own node, those about the ledger too: another node would learn from them who cares for the topic.

The file names topics in clear, as the spool beside it does: the folder is the identity's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallystick.carriers.registry import Way
from tallystick.errors import Malformed, Misuse
from tallystick.identity.folder import Identity
from tallystick.trust.certificate import Certificate

FILE = "carriers.json"


@dataclass(frozen=True)
class CarrierChoice:
    """A carrier, its node, and the topics that go there: tokens in hex, by name."""

    carrier: str  # scheme://name
    url: str
    node: Certificate
    topics: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the carrier's own, beside its name

    @property
    def scheme(self) -> str:
        return self.carrier.partition("://")[0]

    @property
    def way(self) -> Way:
        return Way(self.scheme, {self.scheme: self.carrier.partition("://")[2], **self.settings})

    def of(self, identity: Identity) -> Identity:
        """The identity as it goes there. Raises `Forged` unless the root certified the node."""
        self.node.verify(identity.trust.root_verifier, instance=identity.instance)
        return replace(identity, node_urls=(self.url,), nodes=(self.node,))

    def has(self, topic: str) -> bool:
        return topic in self.topics or topic in self.topics.values()


def read_choices(home: Path) -> dict[str, CarrierChoice]:
    """By carrier. Raises `Misuse` for a file that is none."""
    path = home / FILE
    if not path.exists():
        return {}
    try:
        told = json.loads(path.read_text())
        return {
            name: CarrierChoice(
                *(name, one["url"], Certificate.decode(bytes.fromhex(one["node"]))),
                *(dict(one["topics"]), dict(one.get("settings", {}))),
            )
            for name, one in told.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, Malformed) as error:
        raise Misuse(f"{path}: not a choice of carriers", hint="remove it, and join again: tally mesh join") from error


def choice_of(home: Path, scheme: str) -> CarrierChoice | None:
    """The first carrier of this scheme that was chosen for some topics."""
    return next((one for name, one in read_choices(home).items() if name.startswith(f"{scheme}://")), None)


def choose_carrier(home: Path, choice: CarrierChoice) -> None:
    """Let sessions that are opened from now on take its topics there, and no others."""
    others = {name: replace(one, topics=_without(one, choice)) for name, one in read_choices(home).items()}
    found = {name: one for name, one in others.items() if one.topics} | {choice.carrier: choice}
    told = {
        name: {"url": one.url, "node": one.node.encode().hex(), "topics": dict(one.topics)}
        | ({"settings": dict(one.settings)} if one.settings else {})
        for name, one in found.items()
    }
    path = home / FILE
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(told, indent=1))
    temporary.replace(path)


def _without(one: CarrierChoice, other: CarrierChoice) -> dict[str, str]:
    return {name: token for name, token in one.topics.items() if not (other.has(name) or other.has(token))}


def find_choice(home: Path, topics: Sequence[str], carrier: str | None = None) -> CarrierChoice | None:
    """Where these topics go, or None where they go with the rest. Raises `Misuse` where they part, and where they do
    not go to the `carrier` that was asked for."""
    choices = read_choices(home)
    found = {next((one.carrier for one in choices.values() if one.has(topic)), None) for topic in topics}
    if len(found) > 1:
        raise Misuse(f"{', '.join(topics)}: these go over different carriers", hint="publish to them one by one")
    name = found.pop() if found else None
    if carrier is not None and carrier != name:
        raise Misuse(
            f"{', '.join(topics)}: not chosen for {carrier}", hint=f"tally {carrier.partition('://')[0]} join TOPIC"
        )
    return None if name is None else choices[name]
