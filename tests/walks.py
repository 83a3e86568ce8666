"""Which pages of the documentation the suite walks (scripts/walk.py), in which order, and how a walk is begun."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WALK = ROOT / "scripts" / "walk.py"
WALK_S = 1800  # some minutes, beside the suite and on a machine that others use
GUIDES = ROOT / "docs" / "guides"

# Each page goes on with what those before it made.
_BEGIN = ("README.md", "quickstart.md")
PLAIN = (
    *_BEGIN,
    "console.md",
    "policies.md",
    "interests.md",
    "fleet.md",
    "ota.md",
    "detect.md",
    "operators.md",
    "simulation.md",
    "abci.md",
)
ENGINE = {
    "spark": (*_BEGIN, "pipeline.md", "audit.md", "spark.md", "clusters.md"),
    "kafka": ("kafka.md",),
    "chain": ("chain.md", "overlay.md", "mesh.md"),
}

# Commands that the suite cannot run, by page and first words, and why.
NOT_RUN = {
    ("chain.md", "tally chain init v0 --rpc 10.0.0.1"): "four machines; test_chain_commands.py does it on loopback",
    ("chain.md", "tally init fleet --ledger cometbft://10.0.0.1"): "four machines",
    ("chain.md", "tally chain join v0 v0.json v1.json v2.json v3.json"): "four machines",
    ("chain.md", "tally chain join v4 v0.json v1.json v2.json v3.json"): "four machines",
    ("chain.md", "tally chain successor fleet v0.json v1.json v2.json v3.json"): "four machines; as above",
    ("chain.md", "tally chain successor fleet v0.json v1.json v2.json v4.json"): "five machines",
    ("chain.md", "tally chain genesis v0.json v1.json v2.json v4.json"): "five machines",
    ("chain.md", "tally chain join v4 v0.json v1.json v2.json v4.json"): "five machines",
    ("chain.md", "tally chain status cometbft://10.0.0.1"): "four machines",
    ("chain.md", "tally chain rollback v0"): "a validator with a wrong result; test_change_of_validators.py has one",
    ("clusters.md", "PYSPARK_PYTHON=./environment/bin/python"): "a packed environment, on a cluster of machines",
    ("deployment.md", "podman build"): "no containers here; test_operations.py holds the files to what exists",
    ("deployment.md", "podman run"): "as above",
    ("deployment.md", "operations/build.sh"): "as root, into the system; its steps are run in a folder by the suite",
    ("deployment.md", "kubectl create"): "a cluster; the chart is held to what exists, and Helm lints and renders it",
    ("deployment.md", "promtool check"): "Prometheus; done by the suite where promtool is",
    ("detect.md", "tally detect train"): "minutes of training; test_detect_commands.py trains a small one",
    (
        "detect.md",
        "tally detect evaluate",
    ): "captures that are not ours to hand out; tests/detect evaluates what is there",
    ("fabric.md", "tally fabric up lab --trial"): "serves until it is stopped; test_fabric_commands.py runs one",
    ("fabric.md", "tally fabric switch"): "as above",
    ("fabric.md", "tally fabric topology lab"): "as above",
    ("fabric.md", "tally fabric trace lab"): "as above",
    ("fabric.md", "tally fabric join"): "hosts behind switches; test_fabric_members.py has two",
    ("fabric.md", "tally fabric directory"): "as above",
    ("fleet.md", "tally fleet replay"): "a recording that is not ours to hand out; tests/fleet replays it where it is",
    ("kafka.md", "pip install"): "from the network",
    ("kafka.md", "tally node add fleet"): "a chain and Kafka together; tests/kafka runs several gateways",
    ("kafka.md", "tally up fleet --authority-only"): "a chain and Kafka together",
    ("operators.md", "TALLY_REVOKE_S=10"): "a test of this suite",
    ("operators.md", "tally ledger history vitals"): "what the demo leaves; tests/demo looks at it",
    ("ota.md", "tally ota stick"): "a vehicle by its identifier; test_ota_commands.py writes a stick",
    (
        "overlay.md",
        "tally overlay found fleet city",
    ): "relays of different operators; test_overlay_commands.py founds some",
    ("overlay.md", "tally node add fleet relay-1"): "as above; tally overlay up makes its relays so",
    ("overlay.md", "tally overlay plan sign city.toml"): "as above; test_overlay_commands.py signs plans",
    ("overlay.md", "tally principal overlay city edge-a --repositories"): "a virtual node more than the trial has; "
    "test_overlay_clients.py has one",
    ("overlay.md", "tally up relay-1 --node-only"): "as above; tally overlay up runs its relays so",
    ("pipeline.md", "pip install"): "from the network",
    ("pipeline.md", "tally pipeline run ingest --home reader --topic frames"): "a bus; test_jobs_detect.py has one",
    ("pipeline.md", "tally pipeline run ingest --topic ota/manifests"): "cars; test_jobs_updates.py has some",
    ("simulation.md", "python -m tallystick.sim --seed 0 --count"): "a quarter of an hour; tests/sim runs seeds",
    ("spark.md", "pip install"): "from the network",
}


def page(name: str) -> Path:
    return ROOT / name if name == "README.md" else GUIDES / name


def begin_walk(names: tuple[str, ...]) -> subprocess.Popen[str]:
    """Everything is said on stdout. Where the library for policies has no wheel, their guide is left out."""
    walked = [str(page(name)) for name in names if name != "policies.md" or find_spec("pymcl")]
    return subprocess.Popen(
        [sys.executable, str(WALK), *walked],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def all_said(walk: subprocess.Popen[str]) -> str:
    """What a walk said until its end. Where one failed, the last lines are what tells: all of them are long."""
    told, _ = walk.communicate(timeout=WALK_S)
    assert walk.returncode == 0, "\n".join([f"the walk ended with code {walk.returncode}", *told.splitlines()[-60:]])
    return told
