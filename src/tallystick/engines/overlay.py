"""An overlay for trials: every relay a process of this machine, in one folder, on a chain of its own.

    <folder>/                an instance on a chain: its authority, and a node for what travels over no overlay
    <folder>/chain/          its validators
    <folder>/overlay.json    the tree of virtual nodes, and where each relay listens
    <folder>/plan.toml       the plan, as an administrator writes it
    <folder>/hub.urls        how commands are told of the relays of a virtual node: --node-url …
    <folder>/administrator/  the identity that signs it
    <folder>/relays/hub-1/   a node that is a relay, and relay.log

Real overlays have relays of different operators on different machines: one who runs all of them protects nobody from
himself. Everything here is made once, and made up for where an earlier run was cut short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from tallystick.client.plan_file import PlanFile
from tallystick.crypto.signatures import SigningKey
from tallystick.engines.chain import chain_url
from tallystick.errors import Misuse, Refused
from tallystick.identity.enrol import enrol_invited
from tallystick.identity.folder import Identity
from tallystick.identity.invitation import Invitation
from tallystick.ledger import entries
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.plans import MARGIN_BLOCKS, OVERLAYS, plan_at
from tallystick.ledger.contracts.settings import VERSIONS
from tallystick.node.instance import Folders, create_node, find_passphrase, read_address, read_secret
from tallystick.node.operator import operating
from tallystick.node.processes import free_ports
from tallystick.node.settings import NodeSettings
from tallystick.node.supervisor import Child, ask_at, trouble_at
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.certificate import Certificate
from tallystick.trust.plan import RELAYS_MAX, RELAYS_MIN, overlay_id
from tallystick.trust.trustfile import TrustFile

if TYPE_CHECKING:
    from tallystick.client.session import Session

LOG = "relay.log"
STEADY_S = 5.0  # a relay that lived so long is started again at once: whoever tries faults kills it often
TENANT = "overlay"  # of the administrator
_FILE, _FORMAT = "overlay.json", "tallystick trial overlay 1"
_NAME = re.compile("[a-z0-9][a-z0-9-]{0,31}")
CONTRACTS_S = 60.0
_IDLE = re.compile(r"^tally_anchorer_relaying 0", re.MULTILINE)
_SOON_BLOCKS = 4  # beyond the margin, while the plan is on its way


@dataclass(frozen=True)
class TrialRelay:
    name: str
    port: int  # of its node
    link_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class TrialNode:
    """A virtual node; `parent` is empty for the root."""

    name: str
    parent: str
    relays: tuple[TrialRelay, ...]


def read_tree(text: str) -> dict[str, str]:
    """The parent of each virtual node that `hub,edge-a,edge-b:edge-a` names: the first is the root, and those without a
    parent of their own hang on it. Raises `Misuse`."""
    found: dict[str, str] = {}
    for word in text.split(","):
        name, _, parent = word.strip().partition(":")
        if not _NAME.fullmatch(name) or name in found:
            raise Misuse(f'virtual node "{name}": a name of its own expected, of small letters, digits and hyphens')
        parent = parent or next(iter(found), "")
        if parent not in (found or {""}):
            raise Misuse(f'virtual node "{name}": its parent "{parent}" must stand before it')
        found[name] = parent
    return found


@dataclass(frozen=True)
class TrialOverlay:
    folder: Path  # resolved, since it marks the processes
    name: str
    nodes: tuple[TrialNode, ...]

    @classmethod
    def create(cls, folder: Path, name: str, tree: dict[str, str], relays: int) -> TrialOverlay:
        """A new one, with free ports; nothing runs yet. Raises `Misuse`."""
        if not RELAYS_MIN <= relays <= RELAYS_MAX:
            raise Misuse(f"{relays} relays: {RELAYS_MIN} to {RELAYS_MAX} make a virtual node")
        ports = iter(free_ports(2 * relays * len(tree)))
        nodes = tuple(
            TrialNode(
                node, parent, tuple(TrialRelay(f"{node}-{n}", next(ports), next(ports)) for n in range(1, relays + 1))
            )
            for node, parent in tree.items()
        )
        made = cls(folder.resolve(), name, nodes)
        content = {"format": _FORMAT, "overlay": name, "nodes": [asdict(node) for node in nodes]}
        (made.folder / _FILE).write_text(json.dumps(content, indent=1) + "\n")
        return made

    @classmethod
    def open(cls, folder: Path) -> TrialOverlay:
        """The overlay in `folder`, running or not. Raises `Misuse` where none is."""
        path = folder / _FILE
        if not path.exists():
            raise Misuse(f"{folder}: no overlay is here", hint=f"tally overlay up {folder} makes one")
        try:
            found = json.loads(path.read_text())
            if found["format"] != _FORMAT:
                raise ValueError(f"format {found['format']!r}")
            nodes = tuple(
                TrialNode(one["name"], one["parent"], tuple(TrialRelay(**relay) for relay in one["relays"]))
                for one in found["nodes"]
            )
            return cls(folder.resolve(), str(found["overlay"]), nodes)
        except (ValueError, KeyError, TypeError) as error:
            raise Misuse(f"{path}: not what tally overlay up wrote: {error}") from error

    @property
    def relays(self) -> Iterator[TrialRelay]:
        return (relay for node in self.nodes for relay in node.relays)

    @property
    def tree(self) -> dict[str, str]:
        return {node.name: node.parent for node in self.nodes}

    def place(self, relay: TrialRelay) -> Path:
        """The folder of a relay."""
        return self.folder / "relays" / relay.name

    def certificate(self, relay: TrialRelay) -> Certificate:
        return Certificate.decode((Folders(self.place(relay)).node / "certificate").read_bytes())

    def child(self, relay: TrialRelay) -> Child:
        """How the process of a relay is started."""
        place = self.place(relay)
        words = ["up", str(place), "--supervised", "--json", "--node-only"]
        return Child(relay.name, words, with_passphrase=False, log=place / LOG, steady_s=STEADY_S)

    def make_relays(self, now_ms: int, entropy: Entropy) -> int:
        """Make the nodes that are missing, and the plan file. Returns how many were made."""
        missing = [relay for relay in self.relays if not Folders(self.place(relay)).trust.exists()]
        ledger = chain_url(self.folder)
        for relay in missing:
            rmtree(self.place(relay), ignore_errors=True)  # what a run that was cut short left
            settings = NodeSettings(
                port=relay.port,
                ledger=ledger,
                carrier=f"overlay://{self.name}",
                carrier_settings={"overlay_listen": f"127.0.0.1:{relay.link_port}"},
            )
            create_node(self.folder, self.place(relay), find_passphrase(self.folder), settings, now_ms, entropy)
        for node in self.nodes:
            self.urls_file(node).write_text(" ".join(f"--node-url {relay.url}" for relay in node.relays) + "\n")
        if not self.plan_file.exists():
            self.plan_file.write_text("".join(self._plan_lines()))
        return len(missing)

    def urls_file(self, node: TrialNode) -> Path:
        return self.folder / f"{node.name}.urls"

    @property
    def plan_file(self) -> Path:
        return self.folder / "plan.toml"

    def _plan_lines(self) -> Iterator[str]:
        yield f'overlay = "{self.name}"\n'
        for node in self.nodes:
            yield f'\n[[nodes]]\nname = "{node.name}"\n'
            yield f'parent = "{node.parent}"\n' if node.parent else ""
            for relay in node.relays:
                key = SigningKey.from_seed(read_secret(Folders(self.place(relay)).node / "key"))
                link_key = SigningKey.from_seed(key.derive("tallystick link key 1")).public.raw
                yield f'[[nodes.relays]]\nprincipal = "{self.certificate(relay).subject.hex()}"\n'
                yield f'address = "127.0.0.1:{relay.link_port}"\nlink_key = "{link_key.hex()}"\n'
                yield f'host = "{relay.name}"  # as if each had a machine of its own\n'


def trouble_of(url: str) -> str:
    """Why the relay whose node listens there does not forward, in its own words; empty if it does."""
    if trouble := trouble_at(url):
        return trouble
    trouble, said = ask_at(url, "/metrics")
    return trouble or ("it serves, and relays nothing yet" if _IDLE.search(said) else "")


def enrol_administrator(folder: Path, clock: Clock, entropy: Entropy) -> Identity:
    """The identity that signs the trial's plans, enrolled the first time; node and authority run."""
    home, folders = folder / "administrator", Folders(folder)
    if (home / "identity.json").exists():
        return Identity.load(home)
    with operating(folder, clock, entropy) as operator:
        known = TENANT in operator.tenants()  # since a run that was cut short
        code = operator.invite_to(TENANT, owns=True) if known else operator.create_tenant(TENANT)
    urls = read_address(folders.authority).url, (read_address(folders.node).url,)
    invitation = Invitation.of(code, TrustFile.parse(folders.trust.read_text()), *urls)
    return enrol_invited(home, "administrator", invitation, clock=clock, entropy=entropy)


class Founding:
    """What brings an overlay and its first plan to the ledger, step by step; each is left out where it is done."""

    def __init__(self, trial: TrialOverlay, session: Session, pause: Callable[[], None]) -> None:
        """`pause` is called while the ledger goes on by itself."""
        self._trial, self._session, self._pause = trial, session, pause
        self.identifier = overlay_id(session.identity.instance, trial.name)

    def wait_for_contracts(self) -> None:
        """A new instance's authority brings the contracts of its release into force, a few blocks after its first. In
        an older instance its operator does."""
        clock, view = self._session.clock, self._session.view
        deadline = clock.monotonic() + CONTRACTS_S
        while True:
            versions, head = view.row_at(VERSIONS())
            active = {name: version for name, version, start in versions or () if start <= head.height}
            missing = [name for name, version in newest().items() if active.get(name, 1) < version]
            if "plans" in active and not missing:
                return
            if clock.monotonic() > deadline:
                named = ", ".join(missing or ["plans"])
                hint = f"tally instance activate {self._trial.folder}, then this again"
                raise Misuse(f"contracts of this release are not in force: {named}", hint=hint)
            self._pause()

    def enrol_relays(self) -> None:
        view = self._session.view
        certificates = [self._trial.certificate(relay) for relay in self._trial.relays]
        missing = [one for one in certificates if view.row(IDENTITIES(one.subject)) is None]
        if missing:
            self._session.author.write(*map(entries.enrol, missing))

    def found(self) -> bool:
        """Returns whether it was still to be founded."""
        session = self._session
        if session.view.row(OVERLAYS(self.identifier)) is not None:
            return False
        with operating(self._trial.folder, session.clock, session.entropy) as operator:
            operator.change_rules([entries.overlay(self.identifier, [session.identity.principal], 1)])
        return True

    def bring_plan(self) -> bool:
        """Sign and submit the plan file, unless there was a plan already. Returns whether there was none."""
        session, me = self._session, self._session.identity
        row, head = session.view.row_at(OVERLAYS(self.identifier))
        if row is None or row.version:
            return False

        def key(principal: bytes) -> bytes:
            known = session.view.row(IDENTITIES(principal))
            if known is None:
                raise Misuse(f"{self._trial.plan_file}: {principal.hex()} is not enrolled")
            return known.key

        plan = PlanFile.read(self._trial.plan_file).plan(self.identifier, 1, bytes.fromhex, key)
        first = head.height + MARGIN_BLOCKS + _SOON_BLOCKS
        while True:
            signature = entries.sign_plan(me.instance, plan, first, me.principal, me.signing_key)
            try:
                session.author.write(entries.plan(plan, first, [signature]))
                return True
            except Refused as error:
                if error.reason != "out-of-range":  # else blocks came faster than was thought
                    raise
                first += 2 * MARGIN_BLOCKS

    def wait_for_plan(self) -> int:
        """Returns the version in force."""
        while True:
            head = self._session.view.row_at(OVERLAYS(self.identifier))[1]
            plan = plan_at(self._session.view.row, self.identifier, head.height)
            if plan is not None:
                return plan.version
            self._pause()
