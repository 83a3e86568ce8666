"""The files of a CometBFT node as our chain wants them: configuration, genesis, keys.

Written whole, not edited into what `cometbft init` writes, so that one page says everything that differs from its
defaults and why. Keys come from entropy that is handed in.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from tallystick.crypto.signatures import SigningKey
from tallystick.ledger.block import BYTES_MAX
from tallystick.ledger.cometbft.application import APP_VERSION, genesis_state
from tallystick.ledger.cometbft.client import chain_id
from tallystick.trust.trustfile import TrustFile

BLOCK_BYTES_MAX = 4 << 20

_CONFIG = """# Written by tallystick; what is not here has CometBFT's default.
moniker = "{moniker}"
log_level = "consensus:info,state:info,statesync:info,p2p:error,*:error"

[rpc]
laddr = "tcp://{rpc}"
max_body_bytes = 16000000  # a transaction of 3 MiB in JSON

[p2p]
laddr = "tcp://{p2p}"
persistent_peers = "{peers}"
pex = false  # a permissioned chain: who takes part is written down, not found
addr_book_strict = {strict}
allow_duplicate_ip = {duplicate}
flush_throttle_timeout = "5ms"
send_rate = 104857600
recv_rate = 104857600

[mempool]
size = 20000
max_txs_bytes = 268435456
max_tx_bytes = {tx_bytes}
recheck = false  # a block refuses again whatever no longer holds

[consensus]
timeout_propose = "2s"  # lower ones time out under load
timeout_commit = "{commit_ms}ms"
peer_gossip_sleep_duration = "10ms"
create_empty_blocks = true
create_empty_blocks_interval = "{block_ms}ms"  # leases and expiries are measured in block time

[statesync]
enable = {sync}
rpc_servers = "{sync_servers}"
trust_height = {sync_height}
trust_hash = "{sync_hash}"
trust_period = "168h0m0s"
discovery_time = "5s"

[tx_index]
indexer = "null"  # the application knows where its transactions lie

[instrumentation]
prometheus = false
"""


@dataclass(frozen=True)
class NodeAddresses:
    """Where one node listens: `host:port` each."""

    rpc: str
    p2p: str


@dataclass(frozen=True)
class StateSync:
    """Where a node that joins gets its first height from; the header of `height` is trusted by its hash."""

    servers: Sequence[str]
    height: int
    hash: str


@dataclass(frozen=True)
class ChainTiming:
    commit_ms: int = 100  # after a block, for late votes: most of a transaction's latency
    block_ms: int = 2_000  # an empty block at least this often


def write_home(
    folder: Path,
    seeds: tuple[bytes, bytes],
    addresses: NodeAddresses,
    peers: Sequence[str],
    timing: ChainTiming = ChainTiming(),
    sync: StateSync | None = None,
    moniker: str = "tallystick",
) -> None:
    """Configuration and keys, the latter from the seeds of node and validator. The vote state is never overwritten: a
    validator that forgets what it signed may sign twice."""
    node, validator = (SigningKey.from_seed(seed) for seed in seeds)
    (folder / "config").mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "data").mkdir(exist_ok=True, mode=0o700)
    is_local = addresses.p2p.startswith("127.")
    config = _CONFIG.format(
        moniker=moniker,
        rpc=addresses.rpc,
        p2p=addresses.p2p,
        peers=",".join(peers),
        strict="false" if is_local else "true",
        duplicate="true" if is_local else "false",
        tx_bytes=BYTES_MAX + 1024,
        commit_ms=timing.commit_ms,
        block_ms=timing.block_ms,
        sync="true" if sync else "false",
        sync_servers=",".join(sync.servers) if sync else "",
        sync_height=sync.height if sync else 0,
        sync_hash=sync.hash if sync else "",
    )
    (folder / "config" / "config.toml").write_text(config)
    _write_secret(folder / "config" / "node_key.json", {"priv_key": _private(node, seeds[0])})
    _write_secret(
        folder / "config" / "priv_validator_key.json",
        {
            "address": _address(validator.public.raw).hex().upper(),
            "pub_key": _public(validator.public.raw),
            "priv_key": _private(validator, seeds[1]),
        },
    )
    state = folder / "data" / "priv_validator_state.json"
    if not state.exists():
        state.write_text(json.dumps({"height": "0", "round": 0, "step": 0}))


def genesis(trust: TrustFile, validators: Sequence[bytes], now_ms: int, after: tuple[int, str] = (0, "")) -> str:
    """The genesis file: the instance's trust file, and the validators' keys, each with one vote.

    `after` is height and checkpoint text of the ledger that the chain goes on from; nothing, for a new one.
    """
    time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps(
        {
            "genesis_time": time,
            "chain_id": chain_id(trust.instance),
            "initial_height": str(after[0] + 1),
            "consensus_params": {
                "block": {"max_bytes": str(BLOCK_BYTES_MAX), "max_gas": "-1"},
                "evidence": {
                    "max_age_num_blocks": "100000",
                    "max_age_duration": str(7 * 86_400 * 10**9),
                    "max_bytes": "1048576",
                },
                "validator": {"pub_key_types": ["ed25519"]},
                "version": {"app": str(APP_VERSION)},
                "abci": {"vote_extensions_enable_height": "0"},
            },
            "validators": [
                {
                    "address": _address(key).hex().upper(),
                    "pub_key": _public(key),
                    "power": "1",
                    "name": "",
                }
                for key in validators
            ],
            "app_hash": "",
            "app_state": genesis_state(trust, after[1]),
        },
        indent=1,
    )


def node_id(seed: bytes) -> str:
    """The name of a node among its peers."""
    return _address(SigningKey.from_seed(seed).public.raw).hex()


def _address(key: bytes) -> bytes:
    return sha256(key).digest()[:20]


def _public(key: bytes) -> dict[str, str]:
    return {"type": "tendermint/PubKeyEd25519", "value": b64encode(key).decode()}


def _private(key: SigningKey, seed: bytes) -> dict[str, str]:
    return {"type": "tendermint/PrivKeyEd25519", "value": b64encode(seed + key.public.raw).decode()}


def _write_secret(path: Path, content: dict[str, object]) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(json.dumps(content, indent=1))
