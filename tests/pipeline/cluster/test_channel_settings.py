"""Which settings a cluster needs before anything is planned there, and what a driver lends its tasks."""

from __future__ import annotations

import pickle
import re
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from lake import Lake, fails, rows, seqs
from pyspark.errors import PySparkAttributeError
from pyspark.sql.types import StructType
from searches import found
from stack import wait_until

from tallystick.authority.grant import Grant
from tallystick.errors import Misuse
from tallystick.identity.folder import read_keys
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.pipeline import register, task
from tallystick.pipeline.access import admit
from tallystick.pipeline.columns import Projection
from tallystick.pipeline.explain import TallyFailed
from tallystick.pipeline.options import Options
from tallystick.pipeline.session import SECURE, Channel
from tallystick.pipeline.source import BatchReader, TallyDataSource
from tallystick.trust.permit import Operation

PARTS = ("core", "common-utils", "network-common", "kubernetes", "yarn")  # of Spark
CLUSTERS = ("spark://127.0.0.1:7077", "yarn", "k8s://https://127.0.0.1:6443", "local-cluster[2,1,1024]", "")


@pytest.mark.parametrize("master", CLUSTERS)
def test_a_cluster_needs_every_setting(master: str) -> None:
    Channel.of({"spark.master": master, **SECURE}).check()
    for name, value in SECURE.items():
        rest = {other: SECURE[other] for other in SECURE if other != name}
        for given in ({}, {name: "true" if value == "false" else "false"}):
            with pytest.raises(Misuse, match=f"{name}={value} expected"):
                Channel.of({"spark.master": master, **rest, **given}).check()


def test_the_defaults_of_sparks_encryption_do_not_do() -> None:
    usual = {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.io.encryption.enabled": "true",
    }
    with pytest.raises(Misuse, match=r"saslFallback=false, spark.network.crypto.cipher=AES/GCM/NoPadding expected"):
        Channel.of({"spark.master": "yarn", **usual}).check()


def test_tls_stands_for_sparks_own_encryption_and_nothing_else() -> None:
    usual = {"spark.master": "yarn", "spark.ssl.rpc.enabled": "true", "spark.io.encryption.enabled": "TRUE"}
    Channel.of({**usual, "spark.authenticate": "true"}).check()
    with pytest.raises(Misuse, match=r": spark.authenticate=true expected"):
        Channel.of(usual).check()


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]"])
def test_on_one_machine_nothing_is_asked_for(master: str) -> None:
    Channel.of({"spark.master": master}).check()


def test_source_and_sink_refuse_before_they_look_at_anything() -> None:
    given, schema = {"home": "nowhere", "topic": "brakes"}, StructType()
    open_channel = TallyDataSource.over(Channel.of({"spark.master": "yarn"}))
    source = open_channel(given)
    writers = (partial(one, overwrite=False) for one in (source.writer, source.streamWriter))
    for begin in (source.reader, source.streamReader, *writers):
        with pytest.raises(TallyFailed, match=r"spark.authenticate=true.*docs/guides/clusters.md"):
            begin(schema)
    with pytest.raises(TallyFailed, match="no identity is here"):  # where it is vouched for, the sink goes on
        open_channel({**given, "channel": "trusted"}).writer(schema, False)
    far: Any = open_channel({**given, "channel": "trusted"}).reader(schema)
    near: Any = TallyDataSource.over(Channel("local[2]"))(given).reader(schema)
    assert far._options.keys == "driver"
    assert near._options.keys == "home"
    with pytest.raises(TallyFailed, match=r"register\(spark\)"):
        TallyDataSource(given).reader(schema)
    with pytest.raises(TallyFailed, match=r"register\(spark\)"):
        TallyDataSource(given).writer(schema, False)


def test_a_session_that_shows_no_settings_is_refused() -> None:
    class Connected:
        """As a Spark Connect session answers, whose package is not installed here."""

        version = "4.3.0"

        def __getattr__(self, name: str) -> Any:
            raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name})

    with pytest.raises(Misuse, match="a Spark Connect session does not show the settings of its cluster"):
        register(Connected())  # type: ignore[arg-type]


def test_every_setting_that_the_guide_names_is_one_of_this_spark() -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "clusters.md"
    names = set(re.findall(r"(?<!\()\bspark(?:\.[A-Za-z]+)+", guide.read_text()))
    assert names >= {*SECURE, "spark.authenticate.secret.driver.file", "spark.task.maxFailures"}
    jars = Path(pyspark.__file__).parent / "jars"
    known = b"".join(_classes(jar) for part in PARTS for jar in jars.glob(f"spark-{part}_*.jar"))
    open_ended = re.compile(r"(spark\.kubernetes\.(?:driver|executor)\.volumes|spark\.executorEnv|spark\.ssl)\..*")
    assert {name for name in names if open_ended.sub(r"\1", name).encode() not in known} == set()


def _classes(jar: Path) -> bytes:
    """Everything that a jar's classes say."""
    with zipfile.ZipFile(jar) as opened:
        return b"".join(opened.read(name) for name in opened.namelist() if name.endswith(".class"))


@pytest.mark.long
def test_a_loan_is_all_that_a_task_needs_and_not_the_identity(lake: Lake) -> None:
    topic = lake.topic("lent")
    topic.publish(rows(range(50)))
    options = Options.parse(topic.options(keys="driver"))
    frame = topic.read(keys="driver")
    share: Any
    (share,) = BatchReader(options, frame.schema).partitions()
    keys = read_keys(lake.home)
    grant = lake.reader.authority.permit(Operation.SUBSCRIBE, topic.name, 1)
    secrets = {"topic key": grant.private_keys[0][1], "signing seed": keys.signing_seed, "sealing": keys.sealing_seed}
    assert found(secrets, pickle.dumps(share)) == {"topic key", "signing seed"}
    assert found(secrets, repr(share).encode()) == set()
    homeless = replace(options, home="nowhere")
    batches = list(task.read(share.value, homeless, Projection(frame.schema), share.loan))
    assert sorted(value for batch in batches for value in batch["seq"].to_pylist()) == list(range(50))
    with pytest.raises(Misuse, match="no identity is here"):
        list(task.read(share.value, homeless, Projection(frame.schema)))
    assert seqs(frame) == list(range(50))
    assert 'option keys: "mine" is unknown' in fails(lambda: topic.read(keys="mine"))


def test_what_was_destroyed_is_not_lent(lake: Lake) -> None:
    topic = lake.topic("lent-erasable", flags=ERASABLE)
    topic.publish(rows(range(3)))
    access = admit(str(lake.home), topic.name)
    before = Grant.decode(access.loan().grant)
    held = {(one.publisher, one.period) for one in before.erasure_keys}
    assert {publisher for publisher, _ in held} == {lake.car.identity.principal}
    lake.owner.authority.erase(topic.token, lake.car.identity.principal, [])
    wait_until(lambda: access.update() and bool(access.erased))
    after = Grant.decode(access.loan().grant)
    assert access.erased & held
    assert not access.erased & {(one.publisher, one.period) for one in after.erasure_keys}
    assert (after.private_keys, after.schemas) == (before.private_keys, before.schemas)
    assert after.version > before.version
    access.close()
