"""Successors of a trust file: the root names other validators or witnesses, and an entry of the ledger says so.

Threat: somebody who hands the ledger to validators of their own. The successor of the trust file is signed by the root
key, and the block that brings it by the old ledger keys; whoever followed the ledger to its end knows the new keys from
it, and `tally chain genesis --ledger` takes no ledger that does not end so. Everything here may be done again after a
crash: what the ledger has taken is found there, and only files are written anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from tallystick.node.settings import NodeSettings, read_settings, write_settings
from tallystick.node.validator import ValidatorCard, threshold
from tallystick.runtime.sources import SystemClock
from tallystick.trust.certificate import Certificate
from tallystick.trust.trustfile import TrustFile


def hand_over(folder: Path, cards: list[ValidatorCard], root: RootKey, now_ms: int) -> TrustFile:
    """Make the validators of `cards` the ledger of the instance in `folder`, whose node and authority are stopped.
    Returns the new trust file, which the ledger has taken and the instance goes by from now on."""
    settings = read_settings(Folders(folder).node)
    url = SCHEME + ",".join(card.rpc for card in cards)
    if settings.ledger == url:
        raise Misuse(f"{folder}: its ledger is the chain of these validators already")
    keys = tuple(bytes.fromhex(card.note_key) for card in cards)
    changes = {"ledger_keys": keys, "ledger_threshold": threshold(len(cards))}
    return _succeed(folder, changes, replace(settings, ledger=url), root, now_ms)


def change_witnesses(
    folder: Path, witnesses: Sequence[str], quorum: int, urls: Sequence[str], root: RootKey, now_ms: int
) -> TrustFile:
    """Let these witnesses cosign the ledger of the stopped instance in `folder`; `urls` are where the node reaches new
    ones. Returns the new trust file, as `hand_over` does."""
    settings = read_settings(Folders(folder).node)
    reached = (*settings.witness_urls, *(url for url in urls if url not in settings.witness_urls))
    if len(reached) < quorum:
        found = f"{quorum} witnesses must cosign, of {len(reached)} it is known where they are"
        raise Misuse(found, hint="name the others: --witness-url")
    changes = {"witnesses": tuple(witnesses), "quorum": quorum}
    return _succeed(folder, changes, replace(settings, witness_urls=reached), root, now_ms)


def _succeed(folder: Path, changes: Mapping[str, Any], settings: NodeSettings, root: RootKey, now_ms: int) -> TrustFile:
    """Bring the trust file with these changes to the ledger, and let authority and node go by it."""
    folders = Folders(folder)
    before = read_settings(folders.node)
    if not before.ledger and not (folders.node / "ledger.sqlite").exists():
        raise Misuse(f"{folder}: it has no ledger yet", hint=f"tally up {folder} makes one")
    with closing(claim(folders.node)):
        bring = _bring_to_chain if before.ledger else _bring_to_file
        successor = bring(before.ledger, folders.node, changes, root, now_ms)
        if folders.authority.exists():
            certificate = Certificate.decode((folders.node / "authority.certificate").read_bytes())
            install(folders.authority, certificate, successor)
        (folders.node / "trust.json").write_text(successor.to_json())
        folders.trust.write_text(successor.to_json())
        # Last: a node that still has the old settings can be handed over again.
        write_settings(folders.node, settings)
        return successor


def _bring_to_file(_: str, node: Path, changes: Mapping[str, Any], root: RootKey, now_ms: int) -> TrustFile:
    """The successor, as the last entry of the embedded ledger."""
    path = str(node / "ledger.sqlite")
    with closing(LedgerStore(path, create=False)) as store:
        newest = Book(store).trust
    if _has(newest, changes):
        return newest
    keys = open_node_keys(node, newest)
    with closing(SqliteLedger(path, newest, keys.ledger_key, now_ms)) as ledger:
        return _bring(ledger, keys, newest, changes, root, now_ms)


def _bring_to_chain(url: str, node: Path, changes: Mapping[str, Any], root: RootKey, now_ms: int) -> TrustFile:
    """The successor, on a chain that still runs."""
    known = TrustFile.parse((node / "trust.json").read_text())
    with closing(CometbftLedger(url, known, SystemClock())) as ledger:
        newest = ledger.query(trust_file)
        if _has(newest, changes):
            return newest
        return _bring(ledger, open_node_keys(node, newest), newest, changes, root, now_ms)


def _bring(
    ledger: SqliteLedger | CometbftLedger,
    keys: NodeKeys,
    newest: TrustFile,
    changes: Mapping[str, Any],
    root: RootKey,
    now_ms: int,
) -> TrustFile:
    number, first = newest.number + 1, newest.instance
    successor = replace(newest, number=number, first=first, signatures=(), **changes).sign(root)
    newest.check_successor(successor)
    author = keys.certificate.subject
    last = ledger.query(lambda state: state.row(NUMBERS(author)))
    entry = entries.trust(successor.to_json())
    transaction = compose(newest.instance, author, Numbers(last or 0).next(now_ms * 1000), [entry], keys.key)
    ledger.submit(transaction.data, now_ms)
    ledger.flush(now_ms)
    return successor


def _has(trust: TrustFile, changes: Mapping[str, Any]) -> bool:
    return all(getattr(trust, name) == value for name, value in changes.items())
