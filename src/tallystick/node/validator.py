"""A validator as a process: the ledger's application, CometBFT beside it, and the folder of both.

    <folder>/validator.json  what is handed out: public keys and addresses
    <folder>/note.key        the key that signs this validator's checkpoints
    <folder>/trust.json      the instance
    <folder>/ledger.sqlite   the ledger
    <folder>/comet/          CometBFT's home: configuration, genesis, its keys, blocks
    <folder>/comet.log

The two keys of CometBFT and the note key never leave the folder. A validator whose folder is copied and run twice signs
twice and is blamed by its peers: one folder, one process, held by a lock.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from tallystick.abci.server import Server
from tallystick.abci.supervisor import Supervisor
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Malformed, Misuse, TallystickError, Unavailable
from tallystick.ledger.block import checkpoint_text
from tallystick.ledger.book import Book, roll_back
from tallystick.ledger.cometbft.application import ChainSettings, LedgerApplication
from tallystick.ledger.cometbft.home import ChainTiming, NodeAddresses, StateSync, genesis, node_id, write_home
from tallystick.ledger.cometbft.rpc import NOT_AN_ANSWER, SCHEME, Endpoints, RpcEndpoint
from tallystick.ledger.cometbft.snapshot import Shelf
from tallystick.ledger.sqlite_store import LedgerStore
from tallystick.node.instance import claim, read_secret, write_secret
from tallystick.node.processes import engines_folder
from tallystick.runtime.sources import Entropy, SystemClock
from tallystick.trust.trustfile import KEYS_MAX, TrustFile

A = TypeVar("A", bound=Hashable)

COMETBFT_VARIABLE = "TALLY_COMETBFT"
COMETBFT_VERSION = "v0.40.0"  # that of the module; its program calls itself 0.39.0
_SEEDS = "comet.seeds"


@dataclass(frozen=True)
class ValidatorCard:
    """What a validator tells the others."""

    note_key: str  # hex
    vote_key: str  # hex
    node_id: str
    rpc: str  # host:port
    p2p: str

    @property
    def peer(self) -> str:
        return f"{self.node_id}@{self.p2p}"

    def encode(self) -> str:
        return json.dumps({"format": 1, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def decode(cls, text: str) -> ValidatorCard:
        """Raises `Malformed`."""
        try:
            fields = json.loads(text)
            if fields.pop("format") != 1 or not all(isinstance(value, str) for value in fields.values()):
                raise ValueError("format")
            card = cls(**fields)
            if len(bytes.fromhex(card.note_key)) != 32 or len(bytes.fromhex(card.vote_key)) != 32:
                raise ValueError("keys")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Malformed("validator card: not what tally chain init writes") from error
        return card


def threshold(validators: int) -> int:
    """How many of them are more than two thirds."""
    if not 1 <= validators <= KEYS_MAX:
        raise Misuse(f"a chain has 1 to {KEYS_MAX} validators, not {validators}")
    return 2 * validators // 3 + 1


def create_validator(folder: Path, addresses: NodeAddresses, entropy: Entropy) -> ValidatorCard:
    """Draw the keys; nothing that exists is overwritten."""
    if (folder / "validator.json").exists():
        raise Misuse(f"{folder}: a validator is here already")
    note_seed, seeds = entropy.bytes(32), (entropy.bytes(32), entropy.bytes(32))
    write_secret(folder / "note.key", note_seed)
    write_secret(folder / _SEEDS, b"".join(seeds))
    card = ValidatorCard(
        note_key=SigningKey.from_seed(note_seed).public.raw.hex(),
        vote_key=SigningKey.from_seed(seeds[1]).public.raw.hex(),
        node_id=node_id(seeds[0]),
        rpc=addresses.rpc,
        p2p=addresses.p2p,
    )
    (folder / "validator.json").write_text(card.encode())
    return card


def join_chain(
    folder: Path,
    trust: TrustFile,
    genesis_text: str,
    others: list[ValidatorCard],
    timing: ChainTiming = ChainTiming(),
    sync: StateSync | None = None,
) -> None:
    """Write CometBFT's home: the chain of `genesis_text`, with these peers."""
    card = read_card(folder)
    seeds = read_secret(folder / _SEEDS)
    (folder / "trust.json").write_text(trust.to_json())
    peers = [other.peer for other in others if other.node_id != card.node_id]
    home, addresses = folder / "comet", NodeAddresses(card.rpc, card.p2p)
    write_home(home, (seeds[:32], seeds[32:]), addresses, peers, timing, sync, folder.name)
    (home / "config" / "genesis.json").write_text(genesis_text)


def make_genesis(trust: TrustFile, cards: list[ValidatorCard], now_ms: int, ledger: Path | None = None) -> str:
    """Make one genesis for all of them. Raises `Misuse` where the trust file does not fit.

    `ledger` is the file of an embedded ledger, or of a validator of another chain, stopped for good, with whose tree,
    origin and heights the chain goes on; every validator begins with a copy of it, and refuses any other.
    """
    notes = {bytes.fromhex(card.note_key) for card in cards}
    if not notes <= set(trust.ledger_keys):
        raise Misuse(
            "genesis: the trust file does not list every validator's note key",
            hint="make the instance with tally init --validator, or hand its ledger over with tally chain successor",
        )
    if 3 * trust.ledger_threshold <= 2 * len(trust.ledger_keys):
        raise Misuse(
            f"genesis: {trust.ledger_threshold} of {len(trust.ledger_keys)} ledger keys are not above two thirds"
        )
    votes = [bytes.fromhex(card.vote_key) for card in cards]
    return genesis(trust, votes, now_ms, _last_checkpoint(ledger, trust) if ledger is not None else (0, ""))


def _last_checkpoint(ledger: Path, trust: TrustFile) -> tuple[int, str]:
    """Returns height and text of the checkpoint under which a ledger ends.

    Raises `Misuse` where the ledger has not taken the new trust file.
    """
    with closing(LedgerStore(str(ledger), create=False)) as store:
        book = Book(store)
        if book.trust.to_json() != trust.to_json():
            raise Misuse(
                "genesis: the ledger's newest trust file is another one",
                hint="tally chain successor names the validators on the ledger, as its last entry",
            )
        return book.last.height, checkpoint_text(trust.origin, book.last)


def read_card(folder: Path) -> ValidatorCard:
    path = folder / "validator.json"
    if not path.exists():
        raise Misuse(f"{path}: missing", hint="tally chain init makes a validator")
    return ValidatorCard.decode(path.read_text())


def find_cometbft() -> str:
    """The program: named by TALLY_COMETBFT, built by `make engines`, or on the PATH."""
    named = os.environ.get(COMETBFT_VARIABLE)
    cached = engines_folder() / f"cometbft-{COMETBFT_VERSION}" / "cometbft"
    for candidate in (named, str(cached), shutil.which("cometbft")):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise Unavailable(
        "cometbft is not here",
        hint=f"make engines in a checkout, or go install github.com/cometbft/cometbft/cmd/cometbft@{COMETBFT_VERSION}"
        f" and put it on the PATH ({COMETBFT_VARIABLE} names it elsewhere)",
    )


def roll_back_validator(folder: Path, cometbft: str | None = None) -> int:
    """Take the newest block back, in CometBFT and in the ledger, so that it is finalised again. Returns the height
    left.

    For a validator whose application was wrong about its last block; it must be stopped. No vote is taken back: the
    block is the one that was decided.
    """
    with closing(claim(folder)):
        with closing(LedgerStore(str(folder / "ledger.sqlite"), create=False)) as store:
            height = roll_back(store)
        command = [cometbft or find_cometbft(), "rollback", "--home", str(folder / "comet")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"cometbft rollback: {(done.stderr or done.stdout).strip()[-300:]}")
        return height


def open_shelf(folder: Path, settings: ChainSettings = ChainSettings()) -> Shelf:
    """The snapshots of the validator in `folder`, whether it runs or not."""
    ledger = folder / "ledger.sqlite"
    if not ledger.exists():
        raise Misuse(f"{ledger}: missing", hint="tally chain run begins a ledger, or takes one over from its peers")
    return Shelf(str(ledger), settings.snapshot_blocks, settings.snapshots_kept)


def find_sync(servers: list[str], trust: TrustFile) -> StateSync:
    """Where a node may begin: a recent header on which as many validators agree as the trust file asks for."""
    with _endpoints(servers) as endpoints:
        told = _told(endpoints, lambda one: int(one.call("status")["sync_info"]["latest_block_height"]))
        if len(told) < trust.ledger_threshold:
            raise Unavailable(f"{trust.ledger_threshold} validators must tell their height, {len(told)} do")
        height = max(1, sorted(told, reverse=True)[trust.ledger_threshold - 1] - 1)  # so many have it

        def header(endpoint: RpcEndpoint) -> str:
            commit = endpoint.call("commit", height=str(height))["signed_header"]["commit"]
            return str(commit["block_id"]["hash"])

        return StateSync(servers, height, _agreed(endpoints, trust, header, f"header {height}"))


def _agreement(servers: list[str], trust: TrustFile) -> Callable[[int], bytes]:
    """Asks validators for the block of a height."""

    def agreed_block(height: int) -> bytes:
        with _endpoints(servers) as endpoints:
            return _agreed(endpoints, trust, lambda one: bytes(one.ask("block", height)), f"block {height}")

    return agreed_block


def _endpoints(servers: list[str]) -> closing[Endpoints]:
    return closing(Endpoints.parse(SCHEME + ",".join(servers), SystemClock()))


def _agreed(endpoints: Endpoints, trust: TrustFile, ask: Callable[[RpcEndpoint], A], what: str) -> A:
    """What as many validators say as the trust file's threshold."""
    for answer, count in Counter(_told(endpoints, ask)).most_common(1):
        if count >= trust.ledger_threshold:
            return answer
    raise Unavailable(f"{what}: no {trust.ledger_threshold} validators say the same", hint="name more of them")


def _told(endpoints: Endpoints, ask: Callable[[RpcEndpoint], A]) -> list[A]:
    """What those say that answer."""
    found: list[A] = []
    for endpoint in endpoints.all:
        with suppress(TallystickError, *NOT_AN_ANSWER):
            found.append(ask(endpoint))
    return found


class Validator:
    """One validator over its folder; `start`, then `stop`."""

    def __init__(self, folder: Path, cometbft: str | None = None, settings: ChainSettings = ChainSettings()) -> None:
        home = folder / "comet"
        if not (home / "config" / "genesis.json").exists():
            raise Misuse(f"{folder}: it belongs to no chain yet", hint="tally chain join")
        self._lock = claim(folder)
        self.folder = folder
        trust = TrustFile.parse((folder / "trust.json").read_text())
        key = SigningKey.from_seed(read_secret(folder / "note.key"))
        config = tomllib.loads((home / "config" / "config.toml").read_text())
        self.rpc = str(config["rpc"]["laddr"]).removeprefix("tcp://")
        servers = [one for one in str(config["statesync"]["rpc_servers"]).split(",") if one]
        genesis = json.loads((home / "config" / "genesis.json").read_text())
        self.application = LedgerApplication(
            *(str(folder / "ledger.sqlite"), trust, key, settings, _agreement(servers, trust) if servers else None),
            first_height=int(genesis["initial_height"]),
        )
        self._server = Server(self.application)
        command = [cometbft or find_cometbft(), "start", "--home", str(home)]
        self.pair = Supervisor(self._server, command, folder / "comet.log")

    def start(self) -> None:
        self.pair.start()

    def stop(self) -> None:
        """May be called twice."""
        self.pair.stop()
        self.application.close()
        self._lock.close()
