"""Spark's own Kafka connector from Maven, in the user's cache: the peer of `make bench-kafka`, and of nothing else.

python -m engines.spark_kafka        fetch it if it is not there, and print where it is

The connector exists up to 4.2.0, and that one works on our Spark. What Spark brings itself is left out. Spark's own
descriptions name a mirror of Maven Central that not every network reaches; ours gives its name to Central itself.
"""

from __future__ import annotations

from pathlib import Path

from engines.cache import Missing, cached, run_quietly

VERSION = "4.2.0"
TOKENS_VERSION = "4.0.0"  # of a part that only delegation tokens need; not every mirror has a newer one

_PARTS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tallystick</groupId><artifactId>connector</artifactId><version>1</version>
<repositories><repository><id>gcs-maven-central-mirror</id><url>https://repo.maven.apache.org/maven2</url>
</repository></repositories>
<dependencies>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId>
<version>{version}</version></dependency>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-token-provider-kafka-0-10_2.13</artifactId>
<version>{tokens}</version></dependency>
</dependencies></project>
"""


def fetch() -> Path:
    """The folder of the connector's jars; the first call asks Maven for them."""
    return cached(f"spark-kafka-{VERSION}", _download, is_heavy="fetching Spark's Kafka connector from Maven, once")


def _download(folder: Path) -> None:
    (folder / "pom.xml").write_text(_POM.format(version=VERSION, tokens=TOKENS_VERSION))
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DincludeArtifactIds={','.join(_PARTS)}"]
    run_quietly([*copy, f"-DoutputDirectory={folder}/libs"], folder)
    if not list(folder.glob(f"libs/spark-sql-kafka-*-{VERSION}.jar")):
        raise Missing("Maven brought no connector")


if __name__ == "__main__":
    print(fetch())
