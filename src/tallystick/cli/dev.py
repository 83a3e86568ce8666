"""`tally dev`: engines on this machine, for trials and tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, machine, now_ms
from tallystick.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from tallystick.ledger.cometbft.home import ChainTiming
    from tallystick.node.settings import NodeSettings


def _port_option(what: str) -> output.Decorator:
    return click.option(
        "--port", type=click.IntRange(1, 65535), help=f"{what}, the first time; the other ports follow."
    )


def _check_port(folder: Path, port: int | None, is_new: bool) -> None:
    """Ports are chosen once: whoever wrote them down finds the engine there again."""
    if port is not None and not is_new:
        raise Misuse(
            f"{folder}: its ports were chosen when it was made", hint="leave --port out, or use another folder"
        )


def _tell_parts(tell: output.Tell, parts: list[tuple[str, int | None, str]], hint: str) -> None:
    """Tell which processes run: name, process and address of each. Raises `Unavailable` unless all do."""
    told = [{"name": name, "process": pid, "address": address} for name, pid, address in parts]
    rows = [[name, "away" if pid is None else f"process {pid}", address] for name, pid, address in parts]
    tell(told, *output.table(rows))
    if away := [name for name, pid, _ in parts if pid is None]:
        raise Unavailable(f"{', '.join(away)}: not running", hint=hint)


@click.group("dev")
def command() -> None:
    """Start and stop engines on this machine, on loopback.

    \b
    Examples:
      tally dev chain up fleet --validators 4
      tally dev chain down fleet
      tally dev kafka up broker --port 9092
      tally dev kafka status broker
      tally dev spark up cluster
    """


@command.group("kafka")
def kafka() -> None:
    """Apache Kafka: one broker, or several, with TLS, passwords and access control.

    \b
    Examples:
      tally dev kafka up broker
    """


@kafka.command("up")
@folder_argument
@output.default_option("--brokers", type=click.IntRange(1, 5), default=1, help="How many, the first time.")
@_port_option("Where clients find the first broker")
@output.json_option
def kafka_up(folder: Path, brokers: int, port: int | None, tell: output.Tell) -> None:
    """Start the brokers in DIR; the first time, make them. Then: tally up INSTANCE --carrier …, as it says.

    \b
    Examples:
      tally dev kafka up broker --brokers 3
      tally dev kafka up broker --port 9092
    """
    from tallystick.engines.kafka import KafkaCluster

    is_new = not (folder / "cluster.json").exists()
    _check_port(folder, port, is_new)
    cluster = (KafkaCluster.create(folder, brokers, port=port or 0) if is_new else KafkaCluster.open(folder)).start()
    told = {"carrier": cluster.carrier, "settings": str(cluster.operator_file), "clients": str(cluster.client_file)}
    tell(
        {**told, "tools": cluster.tools, "brokers": len(cluster.brokers)},
        f"carrier   {cluster.carrier}",
        f"settings  {cluster.operator_file}",
        f"tools     {cluster.tools}",
        note=f"next: tally up INSTANCE --carrier {cluster.carrier} --kafka-settings {cluster.operator_file}; "
        f'clients that go to Kafka themselves: kafka_client_settings = "{cluster.client_file}" in node.toml',
    )


@kafka.command("status")
@folder_argument
@output.json_option
def kafka_status(folder: Path, tell: output.Tell) -> None:
    """Say which brokers of DIR run, and where clients find them. Exits with 4 unless all do.

    \b
    Examples:
      tally dev kafka status broker
    """
    from tallystick.engines.kafka import KafkaCluster

    brokers = KafkaCluster.open(folder).brokers
    parts = [(one.folder.name, one.pid, f"127.0.0.1:{one.client}") for one in brokers]
    _tell_parts(tell, parts, f"tally dev kafka up {folder}")


@kafka.command("down")
@folder_argument
@output.json_option
def kafka_down(folder: Path, tell: output.Tell) -> None:
    """End the brokers of DIR; what they hold stays.

    \b
    Examples:
      tally dev kafka down broker
    """
    from tallystick.engines.kafka import KafkaCluster

    ended = KafkaCluster.open(folder).stop()
    tell({"ended": ended}, f"{output.plural(ended, 'broker')} ended")


@command.group("spark")
def spark() -> None:
    """Apache Spark: a master and workers that authenticate and encrypt, as a cluster must.

    \b
    Examples:
      tally dev spark up cluster
    """


@spark.command("up")
@folder_argument
@output.default_option("--workers", type=click.IntRange(1, 8), default=2, help="How many, the first time.")
@_port_option("Where drivers find the master")
@output.json_option
def spark_up(folder: Path, workers: int, port: int | None, tell: output.Tell) -> None:
    """Start the cluster in DIR; the first time, make it, with a secret of its own. Each worker has a core and 1 GB.

    \b
    Examples:
      tally dev spark up cluster --workers 2
    """
    from tallystick.engines.spark import SparkCluster

    is_new = not (folder / "spark.json").exists()
    _check_port(folder, port, is_new)
    cluster = (SparkCluster.create(folder, workers, port=port or 0) if is_new else SparkCluster.open(folder)).start()
    told = {"master": cluster.url, "settings": str(cluster.conf), "workers": len(cluster.workers)}
    advice = f"drivers join with SPARK_CONF_DIR={cluster.conf}; tally dev spark down {folder} ends it"
    tell(told, f"master    {cluster.url}", f"settings  {cluster.conf}", note=advice)


@spark.command("status")
@folder_argument
@output.json_option
def spark_status(folder: Path, tell: output.Tell) -> None:
    """Say which of master and workers of DIR run. Exits with 4 unless all do.

    \b
    Examples:
      tally dev spark status cluster
    """
    from tallystick.engines.spark import SparkCluster

    cluster = SparkCluster.open(folder)
    parts = [("master", cluster.master.pid, cluster.url), *((one.folder.name, one.pid, "") for one in cluster.workers)]
    _tell_parts(tell, parts, f"tally dev spark up {folder}")


@spark.command("down")
@folder_argument
@output.json_option
def spark_down(folder: Path, tell: output.Tell) -> None:
    """End master and workers of DIR, and what drivers run there.

    \b
    Examples:
      tally dev spark down cluster
    """
    from tallystick.engines.spark import SparkCluster

    ended = SparkCluster.open(folder).stop()
    tell({"ended": ended}, f"{ended} processes ended")


@command.group("chain")
def chain() -> None:
    """A CometBFT chain whose validators all run here.

    \b
    Examples:
      tally dev chain up fleet
    """


@chain.command("up")
@folder_argument
@output.default_option("--validators", type=click.IntRange(1, 7), default=1, help="How many; one may fail of 4.")
@_port_option("Where clients find the first validator")
@output.json_option
def up(folder: Path, validators: int, port: int | None, tell: output.Tell) -> None:
    """Start the chain of the instance in DIR; the first time, make chain and instance. Then: tally up DIR.

    \b
    Examples:
      tally dev chain up fleet --validators 4
    """
    from tallystick.engines.chain import chain_url, start_chain, validator_folders
    from tallystick.node.settings import NodeSettings
    from tallystick.node.validator import find_cometbft

    find_cometbft()
    is_new = not validator_folders(folder)
    _check_port(folder, port, is_new)
    if is_new:
        make_chain(folder, validators, port or 0, NodeSettings())
    start_chain(folder, machine().clock)
    url = chain_url(folder)
    told = {"ledger": url, "validators": len(validator_folders(folder))}
    tell(told, f"ledger  {url}", note=f"next: tally up {folder}; tally dev chain down {folder} ends it")


def make_chain(
    folder: Path, validators: int, port: int, settings: NodeSettings, timing: ChainTiming | None = None
) -> None:
    """Make validators in `folder`, which has none, and an instance with these settings on their chain."""
    from dataclasses import replace

    from tallystick.cli.init import make_instance
    from tallystick.engines.chain import chain_url, create_validators, found_chain
    from tallystick.ledger.cometbft.home import ChainTiming
    from tallystick.node.instance import Folders

    if Folders(folder).trust.exists():
        raise Misuse(f"{folder}: its instance has an embedded ledger", hint="choose another folder")
    cards = create_validators(folder, validators, machine().entropy, port)
    keys = tuple(bytes.fromhex(card.note_key) for card in cards)
    trust, _ = make_instance(folder, None, replace(settings, ledger=chain_url(folder)), validators=keys)
    found_chain(folder, trust, now_ms(), timing or ChainTiming())


@chain.command("status")
@folder_argument
@output.json_option
def status(folder: Path, tell: output.Tell) -> None:
    """Say which validators of DIR run, and where clients find them. Exits with 4 unless all do.

    Whether they agree, tally chain status asks them.

    \b
    Examples:
      tally dev chain status fleet
    """
    from tallystick.engines.chain import running
    from tallystick.node.validator import read_card

    parts = [(one.name, running(one), read_card(one).rpc) for one in _require_chain(folder)]
    _tell_parts(tell, parts, f"tally dev chain up {folder}")


@chain.command("down")
@folder_argument
@output.json_option
def down(folder: Path, tell: output.Tell) -> None:
    """End the validators of DIR; what they hold stays.

    \b
    Examples:
      tally dev chain down fleet
    """
    from tallystick.engines.chain import stop_chain

    _require_chain(folder)
    ended = stop_chain(folder, machine().clock)
    tell({"ended": ended}, f"{ended} validators ended")


def _require_chain(folder: Path) -> list[Path]:
    from tallystick.engines.chain import validator_folders

    found = validator_folders(folder)
    if not found:
        raise Misuse(f"{folder}: no chain is here", hint=f"tally dev chain up {folder}")
    return found
