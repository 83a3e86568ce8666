"""The end of a ledger, embedded or a chain: the root names validators as its successors, and an entry of it says so.

Threat: somebody who hands the ledger to validators of their own. The successor of the trust file is signed by the root
key, and the block that brings it by the old ledger keys; whoever followed the ledger to its end knows the new keys from
it, and `tally chain genesis --ledger` takes no ledger that does not end so. Everything here may be done again after a
crash: what the ledger has taken is found there, and only files are written anew.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tallystick.authority.authority import install
from tallystick.carriers.scribe import Numbers
from tallystick.crypto.signatures import RootKey
from tallystick.errors import Misuse
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.book import Book
from tallystick.ledger.cometbft.client import CometbftLedger
from tallystick.ledger.cometbft.rpc import SCHEME
from tallystick.ledger.contracts.identity import NUMBERS, trust_file
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.sqlite_store import LedgerStore
from tallystick.node.instance import Folders, NodeKeys, claim, open_node_keys
from tallystick.node.settings import read_settings, write_settings
from tallystick.node.validator import ValidatorCard, threshold
from tallystick.runtime.sources import SystemClock
from tallystick.trust.certificate import Certificate
from tallystick.trust.trustfile import TrustFile


def hand_over(folder: Path, cards: list[ValidatorCard], root: RootKey, now_ms: int) -> TrustFile:
    """Make the validators of `cards` the ledger of the instance in `folder`, whose node and authority are stopped.
    Returns the new trust file, which the ledger has taken and the instance goes by from now on."""
    folders = Folders(folder)
    settings = read_settings(folders.node)
    url = SCHEME + ",".join(card.rpc for card in cards)
    if settings.ledger == url:
        raise Misuse(f"{folder}: its ledger is the chain of these validators already")
    if not settings.ledger and not (folders.node / "ledger.sqlite").exists():
        raise Misuse(f"{folder}: it has no ledger yet", hint="tally init --validator begins with a chain")
    with closing(claim(folders.node)):
        bring = _bring_to_chain if settings.ledger else _bring_to_file
        successor = bring(settings.ledger, folders.node, cards, root, now_ms)
        if folders.authority.exists():
            certificate = Certificate.decode((folders.node / "authority.certificate").read_bytes())
            install(folders.authority, certificate, successor)
        (folders.node / "trust.json").write_text(successor.to_json())
        folders.trust.write_text(successor.to_json())
        # Last: a node that still has the old ledger can be handed over again.
        write_settings(folders.node, replace(settings, ledger=url))
        return successor


def _bring_to_file(_: str, node: Path, cards: list[ValidatorCard], root: RootKey, now_ms: int) -> TrustFile:
    """The successor, as the last entry of the embedded ledger."""
    path = str(node / "ledger.sqlite")
    with closing(LedgerStore(path, create=False)) as store:
        newest = Book(store).trust
    if _names(newest, cards):
        return newest
    keys = open_node_keys(node, newest)
    with closing(SqliteLedger(path, newest, keys.ledger_key, now_ms)) as ledger:
        return _bring(ledger, keys, newest, cards, root, now_ms)


def _bring_to_chain(url: str, node: Path, cards: list[ValidatorCard], root: RootKey, now_ms: int) -> TrustFile:
    """The successor, on a chain that still runs."""
    known = TrustFile.parse((node / "trust.json").read_text())
    with closing(CometbftLedger(url, known, SystemClock())) as ledger:
        newest = ledger.query(trust_file)
        if _names(newest, cards):
            return newest
        return _bring(ledger, open_node_keys(node, newest), newest, cards, root, now_ms)


def _bring(
    ledger: SqliteLedger | CometbftLedger,
    keys: NodeKeys,
    newest: TrustFile,
    cards: list[ValidatorCard],
    root: RootKey,
    now_ms: int,
) -> TrustFile:
    successor = replace(
        newest,
        number=newest.number + 1,
        first=newest.instance,
        ledger_keys=tuple(bytes.fromhex(card.note_key) for card in cards),
        ledger_threshold=threshold(len(cards)),
        signatures=(),
    ).sign(root)
    newest.check_successor(successor)
    author = keys.certificate.subject
    last = ledger.query(lambda state: state.row(NUMBERS(author)))
    number = Numbers(last or 0).next(now_ms * 1000)
    entry = entries.trust(successor.to_json())
    ledger.submit(compose(newest.instance, author, number, [entry], keys.key).data, now_ms)
    ledger.flush(now_ms)
    return successor


def _names(trust: TrustFile, cards: list[ValidatorCard]) -> bool:
    return trust.ledger_keys == tuple(bytes.fromhex(card.note_key) for card in cards)
