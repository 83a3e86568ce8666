"""`tally dev`: engines on this machine, for trials and tests."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import folder_argument, machine, now_ms
from tallystick.errors import Misuse


@click.group("dev")
def command() -> None:
    """Start and stop engines on this machine, on loopback.

    \b
    Examples:
      tally dev chain up fleet --validators 4
      tally dev chain down fleet
      tally dev kafka up broker
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
@output.json_option
def kafka_up(folder: Path, brokers: int, tell: output.Tell) -> None:
    """Start the brokers in DIR; the first time, make them. Then: tally up INSTANCE --carrier …, as it says.

    \b
    Examples:
      tally dev kafka up broker --brokers 3
    """
    from tallystick.engines.kafka import KafkaCluster

    is_new = not (folder / "cluster.json").exists()
    cluster = (KafkaCluster.create(folder, brokers) if is_new else KafkaCluster.open(folder)).start()
    told = {"carrier": cluster.url, "settings": str(cluster.operator_file), "clients": str(cluster.client_file)}
    tell(
        {**told, "brokers": len(cluster.brokers)},
        f"carrier   {cluster.url}",
        f"settings  {cluster.operator_file}",
        note=f"next: tally up INSTANCE --carrier {cluster.url} --kafka-settings {cluster.operator_file}\n"
        f'clients that go to Kafka themselves: kafka_client_settings = "{cluster.client_file}" in node.toml',
    )


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
    tell({"ended": ended}, f"{ended} brokers ended")


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
@output.json_option
def spark_up(folder: Path, workers: int, tell: output.Tell) -> None:
    """Start the cluster in DIR; the first time, make it, with a secret of its own. Each worker has a core and 1 GB.

    \b
    Examples:
      tally dev spark up cluster --workers 2
    """
    from tallystick.engines.spark import SparkCluster

    is_new = not (folder / "spark.json").exists()
    cluster = (SparkCluster.create(folder, workers) if is_new else SparkCluster.open(folder)).start()
    told = {"master": cluster.url, "settings": str(cluster.conf), "workers": len(cluster.workers)}
    advice = f"drivers join with SPARK_CONF_DIR={cluster.conf}; tally dev spark down {folder} ends it"
    tell(told, f"master    {cluster.url}", f"settings  {cluster.conf}", note=advice)


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
@output.json_option
def up(folder: Path, validators: int, tell: output.Tell) -> None:
    """Start the chain of the instance in DIR; the first time, make chain and instance. Then: tally up DIR.

    \b
    Examples:
      tally dev chain up fleet --validators 4
    """
    from tallystick.cli.init import make_instance
    from tallystick.engines.chain import chain_url, create_validators, found_chain, start_chain, validator_folders
    from tallystick.node.instance import Folders
    from tallystick.node.settings import NodeSettings
    from tallystick.node.validator import find_cometbft

    find_cometbft()
    clock, entropy = machine()
    if not validator_folders(folder):
        if Folders(folder).trust.exists():
            raise Misuse(f"{folder}: its instance has an embedded ledger", hint="choose another folder")
        cards = create_validators(folder, validators, entropy)
        keys = tuple(bytes.fromhex(card.note_key) for card in cards)
        trust, _ = make_instance(folder, None, NodeSettings(ledger=chain_url(folder)), validators=keys)
        found_chain(folder, trust, now_ms())
    start_chain(folder, clock)
    url = chain_url(folder)
    told = {"ledger": url, "validators": len(validator_folders(folder))}
    tell(told, f"ledger  {url}", note=f"next: tally up {folder}; tally dev chain down {folder} ends it")


@chain.command("down")
@folder_argument
@output.json_option
def down(folder: Path, tell: output.Tell) -> None:
    """End the validators of DIR; what they hold stays.

    \b
    Examples:
      tally dev chain down fleet
    """
    from tallystick.engines.chain import stop_chain, validator_folders

    if not validator_folders(folder):
        raise Misuse(f"{folder}: no chain is here", hint=f"tally dev chain up {folder}")
    ended = stop_chain(folder, machine().clock)
    tell({"ended": ended}, f"{ended} validators ended")
