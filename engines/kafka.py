"""Apache Kafka from Maven: its jars, in the user's cache by version, for `tally dev kafka` and the tests to start.

python -m engines.kafka        fetch it if it is not there, and print where it is
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from engines.cache import Missing, cached, run_quietly

VERSION = "4.3.0"
LOG4J_VERSION = "2.25.1"  # without it Kafka logs nothing

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tallystick</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{kafka}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{kafka}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
<version>{log4j}</version></dependency>
</dependencies></project>
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


if __name__ == "__main__":
    print(fetch())
