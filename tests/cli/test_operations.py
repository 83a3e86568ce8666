"""What `operations/` holds cannot all be run here. So its commands, settings, ports and paths are held to what exists,
and the steps of the image and of the composed instance run without containers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from configparser import RawConfigParser
from importlib.metadata import version
from pathlib import Path

import pytest
from chain_world import require_cometbft
from test_readme import unknown

from engines import helm
from engines.cache import cache_folder
from tallystick.authority.settings import AuthoritySettings
from tallystick.carriers import registry
from tallystick.cli.witness import run as run_witness
from tallystick.node.settings import NodeSettings, read_settings
from tallystick.node.validator import COMETBFT_VERSION

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "operations"
UNITS = sorted((OPERATIONS / "systemd").glob("*.service"))
FOUND = ROOT / "operations" / "found.sh"
CHART = OPERATIONS / "chart"
SETTINGS = {*NodeSettings.__dataclass_fields__, *registry.keys()}
HELM = shutil.which("helm") or str(cache_folder() / helm.NAME / "helm")  # read before the suite moves HOME
OTHERS = {9090, 3000, 9092, 9093}  # Prometheus, Grafana, Kafka and its controller
EXPOSURE_MAX = 2.0  # of 10, by systemd's own reckoning


def texts() -> dict[str, str]:
    return {str(one.relative_to(OPERATIONS)): one.read_text() for one in OPERATIONS.rglob("*") if one.is_file()}


def said(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def commands() -> list[tuple[str, str]]:
    """Each `tally …` in the files, as it would be typed, with where it stands."""
    found = []
    for name, text in texts().items():
        lines = re.sub(r"\\\n\s*", " ", text)
        found += [(name, one) for one in re.findall(r"\btally ([a-z][^\n|;&\"]*)", lines)]
        lists = re.findall(r"^ *(?:command|args): \[((?:\"?(?:up|chain|witness)\b).*)\]$", text, re.MULTILINE)
        found += [(name, re.sub(r'[",]', "", one)) for one in lists]
    return found


def test_every_command_exists_with_its_options() -> None:
    found = commands()
    assert {name for name, _ in found} >= {"found.sh", "compose.yml", "chart/templates/instance.yaml", "alerts.yml"}
    assert len(found) > 20
    assert [(name, one, word) for name, one in found if (word := unknown(re.sub(r" #.*", "", one)))] == []


def test_every_setting_exists() -> None:
    template = (CHART / "templates" / "settings.yaml").read_text()
    values = (CHART / "values.yaml").read_text()
    [chosen] = re.findall(r"^node:\n((?:  .+\n)+)", values, re.MULTILINE)
    named = {
        *re.findall(r"^    (\w+) = ", template.partition("authority.toml:")[0], re.MULTILINE),
        *re.findall(r"^  (\w+):", chosen, re.MULTILINE),
        *re.findall(r"^(\w+) = \"", FOUND.read_text(), re.MULTILINE),
    }
    assert len(named) > 6
    assert named - {"format"} <= SETTINGS


def test_every_port_is_one_on_which_something_listens() -> None:
    witness = next(one.default for one in run_witness.params if one.name == "port")
    chain = {int(port) for port in re.findall(r"--(?:rpc|p2p) \"\$name:(\d+)\"", FOUND.read_text())}
    ours = {NodeSettings.port, NodeSettings.authority_port, witness, *chain}
    containerfile = texts()["Containerfile"]
    assert {int(port) for port in re.findall(r"^EXPOSE (.*)$", containerfile, re.MULTILINE)[0].split()} == ours
    for name, text in texts().items():
        named = {int(port) for port in re.findall(r"(?:[a-z0-9.]:|--port )(\d{4,5})(?!\d|:\d{5,})\b", text)}
        assert named <= ours | OTHERS | {10001}, name


def test_what_is_copied_and_mounted_is_there() -> None:
    found = texts()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", found["Containerfile"], re.MULTILINE):
        assert all((ROOT / one).exists() for one in line.split()), line
    for shell in re.findall(r"/src/(operations/\S+)", found["Containerfile"]):
        assert (ROOT / shell).exists()
    compose = found["compose.yml"]
    for file in re.findall(r"- \./([^:]+):", compose):
        assert (OPERATIONS / file).exists()
    made = set(re.findall(r"-m 7[05][05] (.*?)(?: \\)?$", found["Containerfile"], re.MULTILINE))
    folders = {one for line in made for one in line.split()}
    mounted = set(re.findall(r"([\w-]+):/var/lib/tallystick/([\w-]+)", compose))
    assert {volume for volume, _ in mounted} == {folder for _, folder in mounted} <= folders
    [volumes] = re.findall(r"^volumes: \{(.*)\}$", compose, re.MULTILINE)
    declared = {one.split(":")[0].strip() for one in volumes.split(",")}
    assert {one for one in re.findall(r"[\"\s]([\w-]+):/(?!/)", compose) if one.islower()} <= declared
    rules = re.findall(r"rule_files: \[(.*)\]", found["prometheus.yml"])
    assert [(OPERATIONS / one).exists() for one in rules] == [True]


def test_images_stand_under_plain_names_and_pinned_versions() -> None:
    for name, text in texts().items():
        assert not re.search(r"pypi|docker\.io|ghcr\.io|quay\.io|gcr\.io|index-url", text), name
    images = re.findall(r"^(?:FROM|    image:) (\S+)", texts()["Containerfile"] + texts()["compose.yml"], re.MULTILINE)
    assert len(images) >= 6
    assert [one for one in images if one != "tallystick" and not re.search(r":v?\d", one)] == []
    assert f"cometbft@{COMETBFT_VERSION}" in texts()["Containerfile"]


def test_nothing_runs_as_root_or_writes_to_its_image() -> None:
    assert re.search(r"^USER 10001", texts()["Containerfile"], re.MULTILINE)
    assert "read_only: true" in texts()["compose.yml"]
    template = texts()["chart/templates/instance.yaml"]
    for promise in ("runAsNonRoot: true", "readOnlyRootFilesystem: true", "drop: [ALL]", "type: RuntimeDefault"):
        assert promise in template


def service(unit: Path) -> dict[str, str]:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(unit)
    return dict(parser["Service"])


def test_units_have_users_and_folders_of_their_own() -> None:
    units = [service(unit) for unit in UNITS]
    assert len({one["User"] for one in units}) == len({one["StateDirectory"] for one in units}) == len(UNITS) == 3
    for one in units:
        assert f"/var/lib/{one['StateDirectory']} " in f"{one['ExecStart']} "
        assert one["RestartPreventExitStatus"] == "2 3"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name
    tally = str(Path(sys.executable).parent / "tally")
    here.write_text(unit.read_text().replace("/opt/tallystick/bin/tally", tally))
    assert "tallystick" not in said("systemd-analyze", "verify", "--man=no", here)  # other units may be complained of
    told = said("systemd-analyze", "security", "--offline=true", "--no-pager", here)
    [exposure] = re.findall(r"Overall exposure level .*: ([\d.]+)", told)
    assert float(exposure) <= EXPOSURE_MAX


@pytest.mark.long
@pytest.mark.helm
def test_helm_takes_the_chart() -> None:
    if not os.access(HELM, os.X_OK):
        pytest.skip("Helm is not built here: make engines")
    said(HELM, "lint", "--strict", CHART)
    rendered = said(HELM, "template", "city", CHART, "--set", "node.commit_ms=50", "--set", "authority.revoke_s=5")
    for file, known in (("node.toml", SETTINGS), ("authority.toml", set(AuthoritySettings.__dataclass_fields__))):
        [text] = re.findall(rf"^  {file}: \|\n((?:    .*\n)+)", rendered, re.MULTILINE)
        settings = tomllib.loads(re.sub(r"^    ", "", text, flags=re.MULTILINE))
        assert settings.keys() - {"format"} <= known
    assert "commit_ms = 50" in rendered
    assert "revoke_s = 5" in rendered


@pytest.mark.long
def test_the_steps_of_the_image_make_a_tally_that_runs(tmp_path: Path) -> None:
    """As the Containerfile does: built, installed into an environment of its own, an instance founded, and asked."""
    target = tmp_path / "tallystick"
    assert f"tally {version('tallystick')}" in said(
        "sh", OPERATIONS / "build.sh", ROOT, target, "kafka", PYTHON=sys.executable, PIP_NO_COMPILE="1"
    )
    tally, fleet = target / "bin" / "tally", tmp_path / "fleet"
    package = Path(said(target / "bin" / "python", "-c", WHERE).strip()).parent
    assert package.is_relative_to(target)
    assert files(package) == files(ROOT / "src" / "tallystick")  # pages, styles, drawings and data files among them
    said(tally, "init", fleet, "--port", "0", "--authority-port", "0")
    running = subprocess.Popen([tally, "up", fleet, "--json"], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        told = json.loads(running.stdout.readline())
        for url in (told["node"], told["authority"]):
            assert said(sys.executable, OPERATIONS / "health.py", f"{url}/health/live").strip() == "live"
            assert "tally_requests_refused_total" in said(sys.executable, "-c", ASK, f"{url}/metrics")
    finally:
        running.terminate()
        assert running.wait(60) == 0
        running.stdout.close()
    away = subprocess.run([sys.executable, OPERATIONS / "health.py", f"{url}/health/live"], check=False)
    assert away.returncode == 1


def files(package: Path) -> set[Path]:
    return {one.relative_to(package) for one in package.rglob("*") if one.is_file() and "__pycache__" not in one.parts}


WHERE = "import tallystick; print(tallystick.__file__)"
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"

# The services of compose.yml but Kafka, under their names, each at an address of loopback.
COMPOSED = """
mount --bind "$1/hosts" /etc/hosts
cd "$1"
sed -i 's|^carrier = .*||' node/node/node.toml authority/node/node.toml
up() { "$@" 2>> log & pids="$pids $!"; }
trap 'kill $pids; wait' EXIT
await() {
    for attempt in $(seq 300); do if "$PYTHON" "$HEALTH" "$1" > /dev/null 2>&1; then return; fi; sleep 0.2; done
    echo "not there: $1"; cat log; exit 1
}
for name in validator-0 validator-1 validator-2 validator-3; do up tally chain run "$name"; done
await http://validator-0:26657/health
up tally up node --node-only
await https://node:7411/health/ready
up tally up authority --authority-only --node-url https://node:7411
await https://authority:7412/health/ready
tally tenant create acme authority --node-url https://node:7411 > owner.invite
tally principal enrol owner.invite --home owner
tally topic create brakes --schema "vin string" --home owner
"""


def can_bind() -> bool:
    if shutil.which("unshare") is None or shutil.which("openssl") is None:
        return False
    tried = subprocess.run(["unshare", "-Urm", "mount", "--bind", "/etc/hosts", "/etc/hosts"], check=False)
    return tried.returncode == 0


@pytest.mark.long
@pytest.mark.chain
def test_the_composed_instance_runs_without_containers(tmp_path: Path) -> None:
    cometbft = require_cometbft()
    if not can_bind():
        pytest.skip("needs openssl, and a mount namespace: run as root, or where users may make one")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in ("node", "authority", "public", *(f"validator-{number}" for number in range(4))):
        (tmp_path / name).mkdir()  # as volumes are mounted
    said("sh", FOUND, tmp_path, PATH=path)
    assert not (tmp_path / "ca.key").exists()
    assert not (tmp_path / "node" / "authority").exists()
    for name in ("node", "authority"):
        assert read_settings(tmp_path / name / "node").host == name
    said("sh", FOUND, tmp_path, PATH=path)  # once is enough
    names = ["node", "authority", *(f"validator-{number}" for number in range(4))]
    hosts = [f"127.9.0.{number + 1} {name}\n" for number, name in enumerate(names)]
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n" + "".join(hosts))
    own = {"PATH": path, "TALLY_COMETBFT": cometbft, "PYTHON": sys.executable, "HEALTH": str(OPERATIONS / "health.py")}
    public = str(tmp_path / "public" / "ca.pem")
    said("unshare", "-Urm", "sh", "-c", COMPOSED, "composed", tmp_path, SSL_CERT_FILE=public, **own)
