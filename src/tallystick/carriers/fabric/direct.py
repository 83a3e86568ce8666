"""A client's way into the fabric: its own host, and through it the tenant's dispatcher.

Threat: an ordinary node that promises nothing, and so lets publishers forget what it never anchors. As on the mesh it
is the identity that says that nothing will be anchored, by a file in its folder that its holder writes (`tally fabric
join`): a choice for some topics (`identity/choices.py`), or for all `fabric.json`, {"fabric": name, "card": of the
dispatcher, "key": of the host}, both in hex.

A permit is shown to the host, which keeps the principal's log, and to the dispatcher, in a request that is signed and
sealed here: the host carries it and cannot read it. What a permit does not say (the interest, or the code of the topic,
what will be published and who may get it) is described beforehand, and goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tallystick import wire
from tallystick.carriers import carrier as doors
from tallystick.carriers.carrier import Offer
from tallystick.carriers.fabric.control import FabricAsk, path_of
from tallystick.carriers.fabric.host_kit import FabricKit, FabricOrder
from tallystick.carriers.mesh.direct import MeshWay, ask_told, write_way
from tallystick.carriers.registry import Wayfarer
from tallystick.carriers.remote import RemoteNode
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.policy.space import AttributeSet
from tallystick.trust.envelope import NONCE_BYTES
from tallystick.trust.fabric import DispatcherCard
from tallystick.trust.permit import Operation, Permit, UndoOrder

FILE = "fabric.json"
DESCRIBED_MAX = 64

LabelKeys = tuple[tuple[int, bytes], ...]


class FabricWay(MeshWay):
    """A `Carrier` for the principal of a host; what the host took is final."""

    def __init__(self, who: Wayfarer, card: DispatcherCard, host_key: bytes) -> None:
        super().__init__(who.node)
        self._who, self._card, self._host_key = who, card, host_key
        self._described: dict[bytes, tuple[FabricAsk, LabelKeys]] = {}  # by permit

    def describe_offer(self, permit: bytes, offer: Offer) -> None:
        self._describe(FabricAsk(permit, self._host_key, offer.content, offer.code, offer.policy), offer.label_keys)

    def describe_interest(self, permit: bytes, interest: bytes) -> None:
        self._describe(FabricAsk(permit, self._host_key, interest), ())

    def _describe(self, ask: FabricAsk, label_keys: LabelKeys) -> None:
        self._described[ask.shown] = ask, label_keys
        for old in [*self._described][:-DESCRIBED_MAX]:
            del self._described[old]

    def advertise(self, permit: bytes) -> None:
        super().advertise(permit)
        self._show(Operation.ADVERTISE, permit)

    def subscribe(self, permit: bytes) -> None:
        super().subscribe(permit)
        self._show(Operation.SUBSCRIBE, permit)

    def _show(self, operation: Operation, permit: bytes) -> None:
        ask, label_keys = self._described.get(permit, (FabricAsk(permit, self._host_key), ()))
        self._send_ask(ask, operation, Permit.decode(permit), label_keys)

    def undo(self, order: bytes) -> None:
        self._send_ask(FabricAsk(order, self._host_key), None, UndoOrder.decode(order), ())
        super().undo(order)

    def _send_ask(self, ask: FabricAsk, act: Operation | None, shown: Permit | UndoOrder, keys: LabelKeys) -> None:
        """Raises `Refused` with the dispatcher's reason, and `Unavailable` where it does not answer."""
        who, nonce = self._who, self._who.entropy.bytes(NONCE_BYTES)
        way = path_of(act, shown.token)
        sealed = ask.seal(way, self._card, (who.principal, who.key), who.clock.now(), nonce)
        names = shown.token, shown.identifier
        order = FabricOrder(int(act or 0), *names, sealed.message, sealed.name, ask.code, keys)
        reason = self.post(doors.FABRIC_ASK_PATH, order.encode()).decode()
        if reason:
            raise Refused(f"the dispatcher refuses: {reason}", reason=reason)


def reach(settings: Mapping[str, str], who: Wayfarer) -> FabricWay:
    return FabricWay(who, *read_way(settings))


def way_settings(card: DispatcherCard, host_key: bytes) -> dict[str, str]:
    return {"card": card.encode().hex(), "key": host_key.hex()}


def read_way(settings: Mapping[str, str]) -> tuple[DispatcherCard, bytes]:
    """The dispatcher's card and the host's key. Raises `Misuse`."""
    try:
        return DispatcherCard.decode(bytes.fromhex(settings["card"])), bytes.fromhex(settings["key"])
    except (KeyError, ValueError, Malformed) as error:
        raise Misuse("the identity knows no dispatcher", hint="tally fabric join --node-url asks for one") from error


def ask_card(dispatcher: RemoteNode) -> DispatcherCard:
    """A dispatcher's card, from itself; a host holds it to the ledger."""
    return DispatcherCard.decode(dispatcher.post(doors.FABRIC_CARD_PATH, b""))


def give_directory(dispatcher: RemoteNode, principals: Mapping[bytes, AttributeSet]) -> None:
    """Tell a dispatcher who holds which attributes; by the topics' owner."""
    rows = [[principal, held.encode()] for principal, held in sorted(principals.items())]
    dispatcher.post(doors.FABRIC_DIRECTORY_PATH, wire.encode([1, rows]))


def give_kit(node: RemoteNode, kit: FabricKit) -> bytes:
    """Hand a kit to the principal's own host. Returns the host's key for answers."""
    return node.post(doors.FABRIC_KIT_PATH, kit.encode())


def ask_status(node: RemoteNode) -> dict[str, object]:
    """What the host tells of itself; nothing of it is verified."""
    return ask_told(node, doors.FABRIC_STATUS_PATH)


def join_fabric(home: Path, name: str, card: DispatcherCard, host_key: bytes) -> None:
    """Sessions of the identity in `home` that are opened from now on go over the fabric."""
    write_way(home / FILE, {"fabric": name, **way_settings(card, host_key)})
