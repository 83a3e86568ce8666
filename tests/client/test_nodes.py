"""Which node is at which address, where an instance has several: also when one of them does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import PASSPHRASE, Stack

from tallystick.identity.nodes import ask_nodes
from tallystick.node.instance import create_node
from tallystick.node.processes import free_ports
from tallystick.node.settings import NodeSettings
from tallystick.trust.certificate import Certificate


class Nodes:
    """One node that answers, at two addresses, and two that do not."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self.here = stack.node.keys.certificate
        self.away, self.other = (
            create_node(
                stack.folders.root,
                folder / name,
                PASSPHRASE,
                NodeSettings(),
                int(stack.clock.now() * 1000),
                stack.entropy,
            )
            for name in ("away", "other")
        )
        self.url, self.again = stack.node.url, stack.node.url.replace("127.0.0.1", "localhost")
        self.gone = f"http://127.0.0.1:{free_ports(1)[0]}"

    def ask(self, urls: tuple[str, ...], *known: Certificate) -> list[Certificate]:
        stack = self._stack
        return list(ask_nodes(urls, known, stack.node.trust, stack.clock, stack.entropy, insecure=False))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Stack(tmp_path_factory.mktemp("nodes")) as stack:
        yield Nodes(stack, tmp_path_factory.mktemp("others"))


def test_who_answers_is_known_at_its_address_and_who_does_not_at_the_other(nodes: Nodes) -> None:
    for known in ((nodes.here, nodes.away), (nodes.away, nodes.here)):
        assert nodes.ask((nodes.gone, nodes.url), *known) == [nodes.away, nodes.here]
        assert nodes.ask((nodes.url, nodes.gone), *known) == [nodes.here, nodes.away]


def test_two_addresses_of_one_node_are_nobody_elses(nodes: Nodes) -> None:
    assert nodes.ask((nodes.url, nodes.again), nodes.away, nodes.here) == [nodes.here, nodes.here, nodes.away]
    assert nodes.ask((nodes.url, nodes.again), nodes.here) == [nodes.here]
    assert nodes.ask((nodes.url, nodes.gone), nodes.here) == [nodes.here]


def test_nodes_without_an_address_come_last(nodes: Nodes) -> None:
    assert nodes.ask((nodes.url,), nodes.away, nodes.here) == [nodes.here, nodes.away]
    assert nodes.ask((nodes.gone, nodes.url), nodes.here, nodes.away, nodes.other) == [
        *(nodes.away, nodes.here),
        nodes.other,
    ]


def test_an_address_that_nobody_answers_and_nobody_is_left_for_is_another_of_the_first(nodes: Nodes) -> None:
    assert nodes.ask((nodes.url, nodes.gone, nodes.gone), nodes.here, nodes.away)[1:] == [nodes.away, nodes.here]
