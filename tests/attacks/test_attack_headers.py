"""A hostile client of Kafka names a header in bytes that are no text: one record, and the notary reads nobody's.

Kafka's library has a small cluster inside, for tests, which keeps records as they came. The hostile record is produced
by the library's own C functions, since its Python ones take text alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from without import without

from tallystick.carriers.kafka.consumers import Record, Tail
from tallystick.carriers.kafka.passage import PASSAGE
from tallystick.carriers.storage import Place

kafka = pytest.importorskip("confluent_kafka")

HOSTILE, HONEST = Place(b"\1" * 16, 0), Place(b"\2" * 16, 0)
PATIENT_S = 20.0
WARM = 32  # records after which the interpreter calls the library in its quick way


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of the library's own cluster, with a record of each tenant."""
    cluster = kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0})
    [one] = cluster.list_topics(timeout=PATIENT_S).brokers.values()
    for place in (*[HOSTILE] * WARM, HONEST):
        cluster.produce(place.token.hex(), b"parcel", partition=0, headers=[(PASSAGE, b"signed")])
    assert cluster.flush(PATIENT_S) == 0
    produce_raw(f"{one.host}:{one.port}", HOSTILE, b"\xff\xfe", b"parcel")
    yield f"{one.host}:{one.port}"
    cluster.flush(0)  # it lives until here


def produce_raw(address: str, place: Place, name: bytes, value: bytes) -> None:
    """Produce a record with a header of this name."""
    library = ctypes.CDLL(kafka.cimpl.__file__)  # with the symbols of librdkafka, which it is linked to
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, function).restype = ctypes.c_void_p
    pointer, size, number, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
    said = ctypes.create_string_buffer(512)
    settings = pointer(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, text(b"bootstrap.servers"), text(address.encode()), said, size(512))
    producer = pointer(library.rd_kafka_new(number(0), settings, said, size(512)))
    assert producer, said.value
    headers = pointer(library.rd_kafka_headers_new(size(1)))
    library.rd_kafka_header_add(headers, text(name), size(len(name)), text(b"x"), size(1))
    told: list[Any] = [number(1), text(place.token.hex().encode()), number(3), ctypes.c_int32(place.partition)]
    told += [number(4), text(value), size(len(value)), number(7), number(2)]  # the value, to be copied
    assert library.rd_kafka_producev(producer, *told, number(10), headers, number(0)) == 0
    assert library.rd_kafka_flush(producer, number(int(PATIENT_S * 1000))) == 0
    library.rd_kafka_destroy(producer)


@pytest.fixture
def tail(address: str) -> Iterator[Tail]:
    """The notary's, for the partitions of both tenants."""
    tail = Tail(kafka.Consumer({"bootstrap.servers": address, "group.id": "notary", "log_level": 0}))
    tail.follow({HOSTILE: 0, HONEST: 0})
    yield tail
    tail.close()


def read_all(tail: Tail) -> dict[Place, list[Record]]:
    found: dict[Place, list[Record]] = {HOSTILE: [], HONEST: []}
    for _ in range(200):
        for place, records in tail.poll(0.1).items():
            found[place] += records
        if sum(map(len, found.values())) == WARM + 2:
            break
    return found


def test_a_header_that_is_no_text_keeps_nobody_from_being_read(tail: Tail) -> None:
    assert read_all(tail) == {
        HOSTILE: [
            *(Record(offset, b"parcel", b"signed") for offset in range(WARM)),
            Record(WARM, b"parcel", None),  # judged without its passage
        ],
        HONEST: [Record(0, b"parcel", b"signed")],
    }


def test_without_it_one_record_stops_the_notary_for_all(tail: Tail) -> None:
    with without("headers that cannot be read"), pytest.raises(SystemError):
        read_all(tail)
