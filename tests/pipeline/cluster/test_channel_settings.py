"""Which settings a cluster needs before anything is planned there, and what a driver lends its tasks."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from lake import Lake, fails, rows, seqs
from pyspark.sql.types import StructType
from searches import found
from stack import wait_until

from tallystick.authority.grant import Grant
from tallystick.client.identity import read_keys
from tallystick.errors import Misuse
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.pipeline import task
from tallystick.pipeline.access import admit
from tallystick.pipeline.channel import SECURE, Channel
from tallystick.pipeline.columns import Projection
from tallystick.pipeline.explain import TallyFailed
from tallystick.pipeline.options import Options
from tallystick.pipeline.source import BatchReader, TallyDataSource
from tallystick.trust.permit import Operation

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


def test_a_source_refuses_before_it_plans() -> None:
    given, schema = {"home": "nowhere", "topic": "brakes"}, StructType()
    open_channel = TallyDataSource.over(Channel.of({"spark.master": "yarn"}))
    for reader in (open_channel(given).reader, open_channel(given).streamReader):
        with pytest.raises(TallyFailed, match=r"spark.authenticate=true.*docs/guides/clusters.md"):
            reader(schema)
    assert open_channel({**given, "channel": "trusted"}).reader(schema)._options.keys == "driver"
    assert TallyDataSource.over(Channel("local[2]"))(given).reader(schema)._options.keys == "home"
    with pytest.raises(TallyFailed, match=r"register\(spark\)"):
        TallyDataSource(given).reader(schema)


def test_a_loan_is_all_that_a_task_needs_and_not_the_identity(lake: Lake) -> None:
    topic = lake.topic("lent")
    topic.publish(rows(range(50)))
    options = Options.parse(topic.options(keys="driver"))
    frame = topic.read(keys="driver")
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
