"""Apache Kafka for development and tests: fetched from Maven, formatted, started and stopped here, on loopback only.

One broker or several, each of them broker and controller at once (KRaft). Three listeners: `INTERNAL` for brokers and
the operator (TLS with client certificates), `CLIENT` for everybody else (SCRAM inside TLS), `CONTROLLER` for the
quorum. So no password ever stands on a command line: the operator is known by its certificate, and makes the passwords
of others through Kafka's own interface. The StandardAuthorizer denies what no entry allows.

Nothing fetched lies in the checkout: jars in the user's cache by version, a cluster's data in the folder it is told.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from engines.cache import Missing, cached, run_quietly
from engines.certificates import Certificates

VERSION = "4.3.0"
LOG4J_VERSION = "2.25.1"  # without it Kafka logs nothing
HEAP_MB = 384
START_S = 90.0
STOP_S = 20.0
OPERATOR, BROKER = "operator", "broker"  # names in certificates, and so of Kafka's super users

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tallystick</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{kafka}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{kafka}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
<version>{log4j}</version></dependency>
</dependencies></project>
"""
_LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{{1}} %m%n
"""
_PROPERTIES = """process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=INTERNAL://127.0.0.1:{internal},CLIENT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=INTERNAL://127.0.0.1:{internal},CLIENT://127.0.0.1:{client}
listener.security.protocol.map=INTERNAL:SSL,CLIENT:SASL_SSL,CONTROLLER:SSL
inter.broker.listener.name=INTERNAL
controller.listener.names=CONTROLLER
ssl.keystore.type=PEM
ssl.keystore.location={folder}/{certificate}
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.internal.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
listener.name.client.ssl.client.auth=none
ssl.principal.mapping.rules=RULE:^CN=(.*?)$/$1/
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.client.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.client.connections.max.reauth.ms={reauthenticate_ms}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{operator};User:{broker}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=4
default.replication.factor={replicas}
min.insync.replicas={in_sync}
group.initial.rebalance.delay.ms=0
group.consumer.session.timeout.ms=6000
group.consumer.min.session.timeout.ms=6000
group.min.session.timeout.ms=1000
num.network.threads=2
num.io.threads=4
log.cleaner.enable=false
"""


def fetch() -> Path:
    """The folder of Kafka's jars; the first call asks Maven for them."""
    return cached(f"kafka-{VERSION}", _download, is_heavy="fetching Kafka from Maven, a minute or two, once")


def _download(folder: Path) -> None:
    for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            _install(program, package, folder)
    (folder / "pom.xml").write_text(_POM.format(kafka=VERSION, log4j=LOG4J_VERSION))
    run_quietly(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/libs"], folder)
    if not list(folder.glob(f"libs/kafka_*-{VERSION}.jar")):
        raise Missing("Maven brought no Kafka")


def _install(program: str, package: str, folder: Path) -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Missing(f"{program} is missing: sudo apt-get install {package}")
    run_quietly(["apt-get", "install", "-y", "-qq", package], folder)


class Broker:
    """One broker process; `kill` is kill -9, `start` goes on with what is on its disk."""

    def __init__(self, number: int, folder: Path, ports: tuple[int, int, int]) -> None:
        self.number, self.folder = number, folder
        self.internal, self.client, self.controller = ports
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def format(self, cluster: str) -> None:
        arguments = ["format", "-t", cluster, "-c", str(self.folder / "server.properties")]
        run_quietly(_java("kafka.tools.StorageTool", *arguments), self.folder)

    def start(self) -> None:
        with open(self.folder / "output.log", "ab") as output:
            self._process = subprocess.Popen(
                _java("kafka.Kafka", str(self.folder / "server.properties"), log4j=self.folder / "log4j2.properties"),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def output(self) -> str:
        """The last lines of what it wrote."""
        return "\n".join((self.folder / "output.log").read_text(errors="replace").splitlines()[-20:])


def _java(main: str, *arguments: str, log4j: Path | None = None) -> list[str]:
    logging = [f"-Dlog4j2.configurationFile={log4j}"] if log4j else []
    return ["java", f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", *logging, "-cp", f"{fetch()}/libs/*", main, *arguments]


class Cluster:
    """Brokers on loopback, with their certificates, in one folder.

    with Cluster(folder, brokers=3) as cluster:
        AdminClient(cluster.operator())
    """

    def __init__(self, folder: Path, brokers: int = 1, *, reauthenticate_ms: int = 10_000) -> None:
        self.folder = folder.resolve()
        certificates = Certificates(self.folder / "certificates")
        ports = _free_ports(3 * brokers)
        self.brokers = [
            Broker(number, self.folder / f"broker-{number}", (ports.pop(), ports.pop(), ports.pop()))
            for number in range(1, brokers + 1)
        ]
        certificates.issue(OPERATOR)
        certificates.issue(BROKER)
        for broker in self.brokers:
            self._configure(broker, reauthenticate_ms)
        self._is_formatted = False

    def _configure(self, broker: Broker, reauthenticate_ms: int) -> None:
        broker.folder.mkdir(parents=True, exist_ok=True)
        replicas = min(3, len(self.brokers))
        properties = _PROPERTIES.format(
            number=broker.number,
            voters=",".join(f"{one.number}@127.0.0.1:{one.controller}" for one in self.brokers),
            internal=broker.internal,
            client=broker.client,
            controller=broker.controller,
            folder=self.folder / "certificates",
            certificate=f"{BROKER}.pem",
            operator=OPERATOR,
            broker=BROKER,
            data=broker.folder / "data",
            replicas=replicas,
            in_sync=min(2, replicas),
            reauthenticate_ms=reauthenticate_ms,
        )
        (broker.folder / "server.properties").write_text(properties)
        (broker.folder / "log4j2.properties").write_text(_LOG4J.format())

    def start(self) -> Cluster:
        """Format where that was not done yet, start every broker, and wait until all have joined."""
        if not self._is_formatted:
            cluster = run_quietly(_java("kafka.tools.StorageTool", "random-uuid"), self.folder).strip()
            for broker in self.brokers:
                broker.format(cluster)
            self._is_formatted = True
        for broker in self.brokers:
            if not broker.is_running:
                broker.start()
        self.wait_ready()
        return self

    def wait_ready(self, seconds: float = START_S) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        deadline = time.monotonic() + seconds
        client = AdminClient({**self.operator(), "log_level": 0})
        while time.monotonic() < deadline:
            for broker in self.brokers:
                if not broker.is_running:
                    raise Missing(f"broker {broker.number} ended:\n{broker.output()}")
            try:
                if len(client.list_topics(timeout=2).brokers) == len(self.brokers):
                    return
            except KafkaException:
                time.sleep(0.2)
        raise Missing(f"Kafka is not ready after {seconds:.0f} s:\n{self.brokers[0].output()}")

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return "kafka://" + ",".join(f"127.0.0.1:{broker.client}" for broker in self.brokers)

    def operator(self) -> dict[str, str]:
        """The operator's client settings, in librdkafka's words."""
        certificate = str(self.folder / "certificates" / f"{OPERATOR}.pem")
        return {
            "bootstrap.servers": ",".join(f"127.0.0.1:{broker.internal}" for broker in self.brokers),
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.folder / "certificates" / "ca.pem"),
            "ssl.certificate.location": certificate,
            "ssl.key.location": certificate,
        }

    def client(self) -> dict[str, str]:
        """What every other client needs, besides a user's name and password."""
        certificates = self.folder / "certificates"
        return {"bootstrap.servers": self.url.removeprefix("kafka://"), "ssl.ca.location": str(certificates / "ca.pem")}

    def write_settings(self) -> tuple[Path, Path]:
        """`operator.json` and `client.json`: what a node of this cluster is configured with."""
        written = []
        for name, settings in (("operator", self.operator()), ("client", self.client())):
            written.append(self.folder / f"{name}.json")
            written[-1].write_text(json.dumps(settings, indent=2) + "\n")
        return written[0], written[1]


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


if __name__ == "__main__":
    print(fetch())
