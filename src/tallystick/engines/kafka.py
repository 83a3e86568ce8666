"""Kafka for trials and tests: brokers on this machine, on loopback only, in one folder.

One broker or several, each of them broker and controller at once (KRaft). Three listeners: `INTERNAL` for brokers and
the operator (TLS with client certificates), `CLIENT` for everybody else (SCRAM inside TLS), `CONTROLLER` for the
quorum. So no password ever stands on a command line: the operator is known by its certificate, and makes the passwords
of others through Kafka's own interface. The StandardAuthorizer denies what no entry allows.

The jars are those that `make engines` fetched. What a cluster holds stays in its folder: `start` goes on with it. As
in Kafka's own scripts, `KAFKA_OPTS` is what the JVMs of brokers are told besides.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tallystick.carriers.kafka.client import KafkaClient
from tallystick.errors import Misuse, TallystickError, Unavailable
from tallystick.node import processes
from tallystick.node.processes import Daemon
from tallystick.runtime.sources import Clock, SystemClock, SystemEntropy

VERSION = "4.3.0"
HEAP_MB = 384
START_S = 300.0  # ten seconds are enough, unless the machine has other work
OPERATOR, BROKER = "operator", "broker"  # names in certificates, and so of Kafka's super users
_FILE = "cluster.json"
_BRIEF = ("-XX:TieredStopAtLevel=1",)  # of a JVM that lives for a second: no code is worth compiling twice

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
transaction.max.timeout.ms=10000
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


def find_jars() -> Path:
    """Where `make engines` put Kafka's jars."""
    jars = processes.engines_folder() / f"kafka-{VERSION}" / "libs"
    if not jars.is_dir():
        raise Unavailable(f"Kafka {VERSION} is not here", hint="make engines in a checkout fetches it")
    return jars


class Certificates:
    """An authority that is made with the cluster and forgotten with it, and what it issues.

    `folder/ca.pem` is its own; for each name `folder/<name>.pem` has key and certificates, as Kafka and OpenSSL read
    them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tallystick development")])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        authority = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        self._certificate = authority.sign(self._key, hashes.SHA256())
        self.authority.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str) -> Path:
        """A certificate for `name`, good for servers and clients on 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        alternatives = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
        certificate = self._builder(subject, key).add_extension(alternatives, critical=False)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for part in (certificate.sign(self._key, hashes.SHA256()), self._certificate):
            pem += part.public_bytes(serialization.Encoding.PEM)
        path = self.folder / f"{name}.pem"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(pem)
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=365))
        )


class Broker(Daemon):
    """One broker; `kill` is kill -9, `start` goes on with what is on its disk. It outlives the process that starts it,
    and is known by its folder."""

    def __init__(self, number: int, folder: Path, ports: tuple[int, int, int], clock: Clock) -> None:
        self.number, self._properties = number, folder / "server.properties"
        self.internal, self.client, self.controller = ports
        super().__init__(folder, str(self._properties), clock)

    def format(self, cluster: str) -> None:
        """Prepare its disk for the cluster of this name. Raises `Unavailable`."""
        asked = (f"--cluster-id={cluster}", f"--config={self._properties}")  # a name may begin with a hyphen
        command = _java(_BRIEF, "kafka.tools.StorageTool", "format", *asked)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise Unavailable("Kafka needs Java 17 or newer", hint="apt-get install openjdk-17-jre-headless") from None
        if done.returncode:
            raise Unavailable(f"kafka: format failed:\n{(done.stdout + done.stderr)[-2000:]}")

    def start(self) -> None:
        options = [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"]
        options += shlex.split(os.environ.get("KAFKA_OPTS", ""))
        command = _java(options, "kafka.Kafka", str(self._properties))
        processes.spawn(self.folder, command, processes.LOG)


def _java(options: Sequence[str], main: str, *arguments: str) -> list[str]:
    return ["java", f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", *options, "-cp", f"{find_jars()}/*", main, *arguments]


class KafkaCluster:
    """Brokers on loopback, with their certificates, in one folder.

    with KafkaCluster.create(folder, brokers=3) as cluster:
        KafkaClient(cluster.operator())
    """

    def __init__(self, folder: Path, ports: list[tuple[int, int, int]], clock: Clock) -> None:
        self.folder, self._clock = folder.resolve(), clock
        self.operator_file = self.folder / "operator.json"  # how a gateway or notary is known here
        self.client_file = self.folder / "client.json"  # what others need, besides a user's name and password
        self.tools_file = self.folder / "operator.properties"  # the operator's, for Kafka's own tools
        self.brokers = [
            Broker(number, self.folder / f"broker-{number}", three, clock) for number, three in enumerate(ports, 1)
        ]

    @classmethod
    def create(cls, folder: Path, brokers: int = 1, *, reauthenticate_ms: int = 10_000, port: int = 0) -> KafkaCluster:
        """A new cluster; `reauthenticate_ms` is how long Kafka believes a connection before it asks again. Clients find
        the first broker at `port`, and its other ports and those of the other brokers follow; 0: any."""
        if (folder / _FILE).exists():
            raise Misuse(f"{folder}: a Kafka is here already")
        free = processes.ports_from(port, 3 * brokers)
        ports = [(free[at + 1], free[at], free[at + 2]) for at in range(0, len(free), 3)]  # of clients first
        cluster = cls(folder, ports, SystemClock())
        certificates = Certificates(cluster.folder / "certificates")
        certificates.issue(OPERATOR)
        certificates.issue(BROKER)
        name = urlsafe_b64encode(SystemEntropy().bytes(16)).decode().rstrip("=")
        for broker in cluster.brokers:
            cluster._configure(broker, reauthenticate_ms)
            broker.format(name)
        cluster._write_settings()
        (cluster.folder / _FILE).write_text(json.dumps({"ports": ports}) + "\n")
        return cluster

    @classmethod
    def open(cls, folder: Path) -> KafkaCluster:
        """The cluster in `folder`, running or not."""
        ports = processes.read_ports(folder / _FILE, "Kafka", f"tally dev kafka up {folder}")
        return cls(folder, [(one[0], one[1], one[2]) for one in ports], SystemClock())

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

    def start(self) -> KafkaCluster:
        """Start every broker that does not run, and wait until all have joined."""
        for broker in self.brokers:
            if broker.pid is None:
                broker.start()
        self.wait_ready()
        return self

    def wait_ready(self) -> None:
        deadline = self._clock.monotonic() + START_S
        client = KafkaClient(self.operator())
        while self._clock.monotonic() < deadline:
            for broker in self.brokers:
                if broker.pid is None:
                    raise Unavailable(f"broker {broker.number} ended:\n{broker.output()}")
            try:
                if client.broker_count(timeout_s=2.0) == len(self.brokers):
                    client.close()
                    return
            except TallystickError:
                self._clock.pause(0.2)
        raise Unavailable(f"Kafka is not ready after {START_S:.0f} s:\n{self.brokers[0].output()}")

    def stop(self) -> int:
        """End what runs. Returns how many did run."""
        return sum(broker.stop() for broker in self.brokers)

    def __enter__(self) -> KafkaCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return "kafka://" + ",".join(f"127.0.0.1:{broker.client}" for broker in self.brokers)

    @property
    def carrier(self) -> str:
        """Where a node finds it, which is known by a certificate: the listener of `operator`."""
        return "kafka://" + self.operator()["bootstrap.servers"]

    def operator(self) -> dict[str, str]:
        """The operator's settings, in librdkafka's words."""
        certificate = str(self.folder / "certificates" / f"{OPERATOR}.pem")
        return {
            "bootstrap.servers": ",".join(f"127.0.0.1:{broker.internal}" for broker in self.brokers),
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.folder / "certificates" / "ca.pem"),
            "ssl.certificate.location": certificate,
            "ssl.key.location": certificate,
        }

    @property
    def tools(self) -> str:
        """What Kafka's own tools are told to reach it as the operator."""
        return f"--bootstrap-server {self.operator()['bootstrap.servers']} --command-config {self.tools_file}"

    def _write_settings(self) -> None:
        certificate = str(self.folder / "certificates" / "ca.pem")
        client = {"bootstrap.servers": self.url.removeprefix("kafka://"), "ssl.ca.location": certificate}
        self.operator_file.write_text(json.dumps(self.operator(), indent=1) + "\n")
        self.client_file.write_text(json.dumps(client, indent=1) + "\n")
        self.tools_file.write_text(
            f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={certificate}\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={self.operator()['ssl.key.location']}\n"
        )
