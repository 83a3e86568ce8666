"""The configurator: the operator's half of the controller, which programs switches for what it does not know (Fig. 18).

In come requests of the tenants' dispatchers (requests.py), the wiring (topology.py) and the time; out go writes to the
switches and answers. It holds the fabric's key, from which labels are made, and no other.

What it holds to: a request is in force whole, or taken back whole with a refusal. A withdrawal is never taken back: it
goes on where a switch fails, and that switch is left out of all trees until its table was read, so that its neighbours
send it nothing and no frame leaves a withdrawn port later than `revoke_s`, unless publisher and subscriber both hang on
a switch that obeys nobody. Rules go with the permit's expiry. One batch at a time, so changes of one flow never cross.

A *route epoch* is the fabric's: 16 bits in every frame. A new one gets its rules beside the old one's, everybody is
told the new labels, and after `grace_s` the old one's rules go. A number is used again only when no table holds it.

A successor knows the key and nothing else. It reads the tables back, gathers for `gather_s` what dispatchers repeat,
and then repairs what differs; rules that are right are not touched, and frames go on meanwhile. What a hostile
configurator can do is misroute, deny, and learn who talks to whom.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from tallystick.carriers.fabric.flows import FlowBook, FlowLimits
from tallystick.carriers.fabric.installing import FlowInstaller, RuleSettler
from tallystick.carriers.fabric.labels import RouteLabels
from tallystick.carriers.fabric.requests import FlowAnswer, FlowKind, FlowRequest
from tallystick.carriers.fabric.route import live_epochs, next_epoch
from tallystick.carriers.fabric.trees import PortPlace, TreeKind, Wiring
from tallystick.errors import Refused, Unavailable


@dataclass(frozen=True)
class ConfiguratorSettings:
    tree: TreeKind = TreeKind.SPANNING
    epoch_s: float = 6 * 3600.0  # 2**16 of them are 45 years
    grace_s: float = 60.0  # how long an epoch goes on after the next began: hosts hear of it within
    gather_s: float = 5.0  # how long a successor waits for what dispatchers repeat
    revoke_s: float = 1.0  # after which a withdrawal that is not in force is reported
    share_at: float = 0.75  # of a table: from here flows share rules, while there is room to change
    limits: FlowLimits = field(default_factory=FlowLimits)


@dataclass(frozen=True)
class ConfiguratorStatistics:
    epoch: int
    flows: int
    subscriptions: int
    rules: int  # in force
    entries_max: int  # of the fullest switch
    writes: int
    refused: int
    rolled_back: int
    is_sharing: bool
    doubtful: tuple[str, ...]  # switches of which it is not known what they hold
    revoke_worst_s: float  # the longest that a withdrawal took
    overdue: int  # withdrawals not in force everywhere after `revoke_s`


@dataclass
class Configurator:
    key: bytes = field(repr=False)
    installer: FlowInstaller
    tell: Callable[[str, FlowAnswer], None]  # to a dispatcher
    is_host: Callable[[PortPlace], bool]  # whether a port may be a host's
    clock: Callable[[], float]  # seconds since 1970
    settings: ConfiguratorSettings = ConfiguratorSettings()

    def __post_init__(self) -> None:
        settings = self.settings
        bare = Wiring.of(self.installer.drivers, ()).trees(settings.tree)
        self.book = FlowBook(RouteLabels(self.key), bare, 0, settings.limits)
        self._settler = RuleSettler(self.book, self.installer, settings.tree, settings.share_at)
        self._told: dict[bytes, FlowAnswer] = {}
        self._expiries: list[tuple[int, bytes]] = []
        self.is_gathering = True  # what dispatchers repeat
        self._gather_until = self._epoch_until = self._grace_until = 0.0
        self._revoking: dict[str, float] = {}  # by a switch that failed: since when
        self._refused = self._rolled_back = 0
        self._revoke_worst_s = 0.0

    @property
    def wiring(self) -> Wiring:
        return self._settler.wiring

    def doubt(self, switch: str) -> None:
        """A switch does not answer: trees go round it until it does."""
        self.installer.doubtful.add(switch)
        self.rewire(self.wiring)

    # --- taking over ---

    def lead(self, election: int) -> None:
        """Become the one that writes, with the lease's fencing number. Raises `Superseded` if another has a greater."""
        self.installer.lead(election)
        now = self.clock()
        self.book.live(live_epochs(self.installer.epochs()))
        self.is_gathering, self._gather_until = True, now + self.settings.gather_s
        self._grace_until = self._gather_until + self.settings.grace_s
        self._epoch_until = now + self.settings.epoch_s

    def gathered(self) -> None:
        """All dispatchers have repeated what stands: repair what differs."""
        self.is_gathering = False
        self._lay(everything=True, asked=self.book.flows.keys() | self.book.subscriptions.keys())

    def _lay(self, *, everything: bool = False, asked: Set[bytes] = frozenset()) -> None:
        """Along the trees of now, whatever fails."""
        self._settler.reroute()
        self._settler.settle(everything=everything)
        self._tell_changes(asked)

    # --- requests ---

    def receive(self, owner: str, requests: Sequence[FlowRequest]) -> None:
        """Take a dispatcher's requests; the last about each thing counts, and gets an answer. Withdrawals go first, and
        are in force when this returns wherever a switch can be reached."""
        last = {one.identifier: one for one in requests}.values()
        self._withdraw((owner, one) for one in last if one.kind is FlowKind.WITHDRAW)
        self._add(owner, [one for one in last if one.kind is not FlowKind.WITHDRAW])

    def _withdraw(self, requests: Iterable[tuple[str, FlowRequest]]) -> None:
        began, gone = self.clock(), []
        for owner, request in requests:
            try:
                self.book.apply(owner, request)
                gone.append((owner, request.identifier))
            except Refused as error:
                self._refuse(owner, request, error)
        if gone and not self.is_gathering:
            for switch in self._settler.settle():
                self._revoking.setdefault(switch, began)
            self._revoke_worst_s = max(self._revoke_worst_s, self.clock() - began)
            self._tell_changes()
        for owner, identifier in gone:
            self._told.pop(identifier, None)
            self.tell(owner, FlowAnswer(identifier, self.book.epochs[-1]))

    def _add(self, owner: str, requests: Sequence[FlowRequest]) -> None:
        back: list[FlowRequest] = []
        taken: dict[bytes, FlowRequest] = {}
        for request in requests:
            try:
                self._check(request)
                back.append(self.book.apply(owner, request))
                taken[request.identifier] = request
                heapq.heappush(self._expiries, (request.expiry_ms, request.identifier))
            except Refused as error:
                self._refuse(owner, request, error)
        if self.is_gathering or not taken:
            return
        try:
            plan = self._settler.plan()
            self._tell_changes(besides=taken.keys())
            self.installer.carry_out(plan)
        except (Unavailable, Refused) as error:
            self._rolled_back += 1
            for request in reversed(back):
                self.book.apply(owner, request)
            self._settler.settle()
            self._tell_changes()
            for one in taken.values():
                if len(taken) > 1:  # some of them may do alone
                    self._add(owner, [one])
                else:
                    self._refuse(owner, one, error)
        else:
            self._tell_changes(taken.keys())

    def _check(self, request: FlowRequest) -> None:
        place = PortPlace(request.switch, request.port)
        if request.switch not in self.installer.drivers:
            raise Refused(f"flow request: no switch {request.switch}", reason="unknown-switch")
        if not self.is_host(place):
            raise Refused(f"flow request: port {place.port} of {place.switch} is no host's", reason="not-a-host-port")
        if request.expiry_ms <= self.clock() * 1000:
            raise Refused("flow request: its permit has expired", reason="expired")

    def _refuse(self, owner: str, request: FlowRequest, error: Exception) -> None:
        self._refused += 1
        reason = error.reason if isinstance(error, Refused) else "unavailable"
        self.tell(owner, FlowAnswer(request.identifier, refused=reason))

    def stop(self, flow: bytes, what: str) -> None:
        """Take the first rule of a flow away, or its rule up at a switch (floods.py), until it is asked for again."""
        self.book.stop(flow, what)
        self._settler.settle()

    # --- wiring and time ---

    def rewire(self, wiring: Wiring) -> None:
        """Links came or went. Flows are laid along other trees, each changing over at its first switch at once."""
        self._settler.rewire(wiring)
        if not self.is_gathering:
            self._lay()

    def tick(self) -> None:
        """What time does: expiries, epochs, switches that come back, the end of gathering."""
        now = self.clock()
        if self.is_gathering:
            if now >= self._gather_until:
                self.gathered()
            return
        if self.installer.doubtful and self.installer.read_back():
            self._lay(everything=True)
        self._revoking = {one: since for one, since in self._revoking.items() if one in self.installer.doubtful}
        self._expire(int(now * 1000))
        if len(self.book.epochs) > 1 and now >= self._grace_until:
            self.book.live(self.book.epochs[-1:])
            self._settler.settle()
        if now >= self._epoch_until and len(self.book.epochs) == 1:
            try:
                self.begin_epoch()
            except (Unavailable, Refused):
                self._epoch_until = now + self.settings.grace_s  # the old one goes on; again later

    def begin_epoch(self) -> None:
        """Its rules go in beside the old one's. Raises `Refused` where they do not fit; then the old one goes on."""
        now, old = self.clock(), self.book.epochs
        self._epoch_until = now + self.settings.epoch_s
        if len(old) > 1:
            raise Refused("route epoch: the one before has not ended", reason="epoch-live")
        self.book.live([*old, next_epoch(old[-1], self.installer.epochs())])
        try:
            self.installer.carry_out(self._settler.plan())
        except (Unavailable, Refused):
            self.book.live(old)
            self._settler.settle()
            self.book.take_heard()
            raise
        self._grace_until = now + self.settings.grace_s
        self._tell_changes()

    def _expire(self, now_ms: int) -> None:
        gone = []
        while self._expiries and self._expiries[0][0] <= now_ms:
            _, identifier = heapq.heappop(self._expiries)
            it = self.book.find(identifier)
            if it is not None and it.request.expiry_ms <= now_ms:  # it was not renewed
                gone.append((it.owner, FlowRequest(FlowKind.WITHDRAW, identifier)))
        self._withdraw(gone)

    # --- telling ---

    def _tell_changes(self, asked: Set[bytes] = frozenset(), besides: Set[bytes] = frozenset()) -> None:
        """Answer those who asked, and whoever's answer is another now; `besides` are left for later."""
        for identifier in sorted((self.book.take_heard() | asked) - besides):
            it = self.book.find(identifier)
            if it is None:
                continue
            answer = self.book.answer(identifier)
            if identifier in asked or self._told.get(identifier) != answer:
                self._told[identifier] = answer
                self.tell(it.owner, answer)

    def statistics(self) -> ConfiguratorStatistics:
        installer, book, now = self.installer, self.book, self.clock()
        overdue = sum(now - since > self.settings.revoke_s for since in self._revoking.values())
        rules, filled = sum(map(len, installer.in_force.values())), max(installer.filled.values(), default=0)
        held = book.epochs[-1], len(book.flows), len(book.subscriptions), rules, filled
        done = installer.writes, self._refused, self._rolled_back, self._settler.is_sharing
        return ConfiguratorStatistics(*held, *done, tuple(sorted(installer.doubtful)), self._revoke_worst_s, overdue)
