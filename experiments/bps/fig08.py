"""BPS, Fig. 8: how long authorisation takes, by the number of messages.

Claim (section 5.3): while messages grow from 2 to 10 million, Kafka's authorisation time grows by "up to nearly 50 %",
that of BPS by "only about 10 %", because hot rights are cached; at 10 million it is "only up to 10 % more than Kafka",
and it can never be less.

What the paper leaves open: it names no times, and not what a point is. Were every request checked, five times the
messages would take five times as long; growth of a tenth means a mean, or a check that happens once for a connection.
And growth by 10 % to at most 1.1 times Kafka's, which grew by 50 %, means that at 2 million BPS takes up to 1.5 times
as long as Kafka, which the text does not say.

Here, on two sides:

    gateway    what the guards ask of the ledger before a parcel of 4,096 messages is looked at: blacklist, topic,
               DESCRIBE, WRITE; 200 principals on 50 topics. `warm`: through the cache, as a node does; `cold`: every
               value from the ledger; `without`: the same calls where everything is allowed. In processor time
    kafka      the same messages produced by a user with one right, to a Kafka that asks its authorizer (`on`) and to
               one that has none (`off`); what lies between them is Kafka's own authorisation

Expected band, at the paper's scale (`--full`):

    growth     a request costs at 10 million at most 1.1 times what it costs at 2 million, cache warm
    cache      warm is quicker than cold
    share      the warm checks of 10 million messages take at most a tenth of the time that producing them takes

`python -m experiments.bps.fig08 [--small | --full] [--runs N]` writes build/experiments/bps/fig08.csv and .png, and
starts two Kafkas of its own (`make engines`).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import mean
from typing import Any

import data
from kafka_arms import Plain
from ledger_bench import NOW_MS, TENANT, Fleet

from experiments import results
from experiments.bps.transfer import CHUNK, PAPER, Scale, add_scale, in_chunks, scale_of
from experiments.results import Plot
from tallystick.carriers.kafka.administration import AccessEntry
from tallystick.carriers.kafka.client import KafkaClient
from tallystick.carriers.rules import LedgerRules, RightsCache
from tallystick.engines.kafka import KafkaCluster
from tallystick.guards.rules import Act, TopicRules, check_principal, check_topic
from tallystick.ledger import entries
from tallystick.trust.right import Right

GROWTH, SHARE = 1.10, 0.10
USER, PASSWORD, TOPIC = "producer", "of this experiment alone", "authorised"


@dataclass(frozen=True)
class Row:
    side: str  # gateway or kafka
    arm: str  # warm, cold, without; on, off
    messages: int
    run: int
    requests: int  # that were checked; 0 where Kafka decides how many
    seconds: float


class Gateway:
    """A ledger with rights, and the guards' questions to it."""

    def __init__(self, folder: str) -> None:
        fleet = Fleet(folder)
        rights = int(Right.WRITE | Right.DESCRIBE)
        for token in fleet.tokens:
            granted = [entries.grant(token, who, rights) for who in fleet.operators]
            fleet.submit(fleet.owner, fleet.owner_key, granted)
        fleet.ledger.flush(NOW_MS)
        self.pairs = [(who, token) for token in fleet.tokens for who in fleet.operators]
        cache = RightsCache(lambda key: fleet.ledger.query(lambda state: state.row(key)))
        self.rules: dict[str, Any] = {
            "warm": LedgerRules(fleet.trust.instance, lambda key: cache.get(key, NOW_MS)),
            "cold": LedgerRules(fleet.trust.instance, lambda key: fleet.ledger.query(lambda state: state.row(key))),
            "without": Unasked(),
        }
        self.ask(self.rules["warm"], len(self.pairs))

    def measure(self, messages: int, run: int, parcel: int) -> Iterator[Row]:
        requests = -(-messages // parcel)
        for arm, rules in self.rules.items():
            start = time.process_time()  # it only computes, and neighbours do not enter
            self.ask(rules, requests)
            yield Row("gateway", arm, messages, run, requests, time.process_time() - start)

    def ask(self, rules: Any, requests: int) -> None:
        """What the guards ask before they look at a parcel; raises `Refused` as they do."""
        for who, token in islice(cycle(self.pairs), requests):
            act = Act(who, "10.0.0.7", b"", NOW_MS)
            check_principal(rules, act)
            check_topic(rules, act, token, Right.WRITE)


class Unasked:
    """Rules that allow everything, as far as the guards' questions here go."""

    def blacklisted(self, principal: bytes) -> bool:
        return False

    def is_over(self, principal: bytes, time_ms: int) -> bool:
        return False

    def topic(self, token: bytes) -> TopicRules:
        return TopicRules(TENANT, 1, closed=False)

    def allows(self, principal: bytes, token: bytes, right: Right, host: str) -> bool:
        return True


class Producer:
    """A user with one right, on a Kafka with or without its authorizer."""

    def __init__(self, cluster: KafkaCluster, authorises: bool) -> None:
        operator = KafkaClient(cluster.operator())
        operator.make_user(USER, PASSWORD.encode())
        self._plain = Plain(cluster, TOPIC, **user_settings(cluster, PASSWORD))
        if authorises:
            rights = [AccessEntry(f"User:{USER}", TOPIC, right) for right in ("WRITE", "DESCRIBE")]
            operator.change_access(rights, [])
        operator.close()
        self.produce: Callable[[Any], None] = self._plain.send


def user_settings(cluster: KafkaCluster, password: str) -> dict[str, str]:
    """How the user reaches Kafka, in librdkafka's words."""
    return {
        "bootstrap.servers": cluster.url.removeprefix("kafka://"),
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": cluster.operator()["ssl.ca.location"],
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": password,
    }


def create_disarmed(folder: Path) -> KafkaCluster:
    """A new cluster without its authorizer, not started yet: there everybody may do everything."""
    cluster = KafkaCluster.create(folder)
    for broker in cluster.brokers:
        path = broker.folder / "server.properties"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith(("authorizer.", "super.users"))))
    return cluster


def measure_kafka(on: KafkaCluster, off: KafkaCluster, scale: Scale) -> Iterator[Row]:
    """On two clusters that run, the second of them disarmed."""
    rows = data.dicts(data.columns(min(CHUNK, max(scale.messages))))
    arms = {"on": Producer(on, True), "off": Producer(off, False)}
    for producer in arms.values():
        producer.produce(rows)  # connections, rights in every thread of the broker, code that its JVM has compiled
    for run in range(scale.runs):
        for messages in scale.messages:
            for arm, producer in arms.items():
                start = time.perf_counter()
                in_chunks(producer.produce, rows, messages)
                yield Row("kafka", arm, messages, run, 0, time.perf_counter() - start)


def measure_gateway(scale: Scale) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        gateway = Gateway(folder)
        for run in range(scale.runs):
            for messages in scale.messages:
                yield from gateway.measure(messages, run, scale.parcel)


def seconds(rows: Sequence[Row], arm: str) -> dict[int, float]:
    """By the number of messages, the mean of the runs."""
    found = [row for row in rows if row.arm == arm]
    return {count: mean(row.seconds for row in found if row.messages == count) for count in {r.messages for r in found}}


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected; below the paper's scale no band is meant."""
    if min(row.messages for row in rows) < PAPER[0]:
        return []
    warm, cold, produced = seconds(rows, "warm"), seconds(rows, "cold"), seconds(rows, "off")
    first, last = min(warm), max(warm)
    missed = []
    growth = (warm[last] / last) / (warm[first] / first)
    if growth > GROWTH:
        missed.append(f"a warm check at {last} messages takes {growth:.2f} times that at {first}")
    missed += [f"{count} messages: the cache saves nothing" for count in warm if warm[count] >= cold[count]]
    if warm[last] > SHARE * produced[last]:
        missed.append(f"the checks of {last} messages take {warm[last] / produced[last]:.2f} of producing them")
    return missed


def plot(rows: Sequence[Row]) -> Plot:
    names = {
        "warm": "our check, cache warm",
        "cold": "our check, cache cold",
        "without": "the same calls without a check",
        "on": "producing on Kafka, authorizer on",
        "off": "producing on Kafka, authorizer off",
    }
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(names[row.arm], []).append((row.messages, row.seconds))
    warm = seconds(rows, "warm")
    if warm:
        first, last = min(warm), max(warm)
        lines["growth of BPS by its words, 10 %"] = [(first, warm[first]), (last, 1.1 * warm[first])]
        lines["growth of Kafka by its words, 50 %"] = [(first, warm[first]), (last, 1.5 * warm[first])]
    return Plot("Authorisation time", "messages", "s", lines, logarithmic=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = results.make_parser("bps", "fig08")
    add_scale(parser)
    options = parser.parse_args(arguments)
    scale = scale_of(options)
    with tempfile.TemporaryDirectory(prefix="tally-bps-") as name, ExitStack() as stack:
        rows, folder = list(measure_gateway(scale)), Path(name)
        on, off = KafkaCluster.create(folder / "on"), create_disarmed(folder / "off")
        rows += measure_kafka(stack.enter_context(on), stack.enter_context(off), scale)
    return report(rows, options.out)


def report(rows: Sequence[Row], out: Path) -> int:
    def runs(arm: str, count: int) -> list[Row]:
        return [row for row in rows if (row.arm, row.messages) == (arm, count)]

    for count in sorted(seconds(rows, "warm")):
        each = ", ".join(
            results.spread([1e6 * row.seconds / row.requests for row in runs(arm, count)], ".1f")
            for arm in ("warm", "cold", "without")
        )
        print(f"fig08: {count} messages: µs a request warm, cold, without: {each}")
        beside = [on.seconds / off.seconds for on, off in zip(runs("on", count), runs("off", count), strict=True)]
        if beside:
            print(f"fig08: {count} messages: Kafka with its authorizer by without: {results.spread(beside)}")
    return results.report("fig08", rows, plot, misses, out)


if __name__ == "__main__":
    sys.exit(main())
