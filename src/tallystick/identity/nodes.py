"""Which node answers at an address: asked of the node, believed on the root's word.

An identity keeps the certificates of its nodes in the order of its addresses. Where there are more addresses than
nodes, the rest are addresses of the first; more nodes than addresses are known for their promises alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.errors import Misuse, Unavailable
from tallystick.identity.folder import Identity
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.certificate import Certificate, SubjectKind
from tallystick.trust.trustfile import TrustFile


def addresses(identity: Identity) -> list[Address]:
    """Each address with the node that answers there."""
    nodes = identity.nodes
    found = [nodes[number] if number < len(nodes) else nodes[0] for number in range(len(identity.node_urls))]
    return [Address(url, node.subject, node.verify_key) for url, node in zip(identity.node_urls, found, strict=True)]


def ask_node(url: str, trust: TrustFile, clock: Clock, entropy: Entropy, insecure: bool) -> Certificate:
    """The certificate of the node that answers at an address. Raises `Unavailable` where none does."""
    with HttpClient([Address(url, bytes(16))], None, clock, entropy, insecure=insecure) as http:
        certificate = Certificate.decode(http.request("GET", "/v1/certificate", attempts_max=1).body)
    certificate.verify(trust.root_verifier, instance=trust.instance)
    if certificate.kind is not SubjectKind.NODE:
        raise Misuse(f"{url}: what answers there is no node")
    return certificate


def ask_nodes(
    urls: Sequence[str], known: Sequence[Certificate], trust: TrustFile, clock: Clock, entropy: Entropy, insecure: bool
) -> tuple[Certificate, ...]:
    """The certificates of the nodes at these addresses, in order, and behind them the others that are known.

    An address that does not answer now is taken for the next of `known` that answers nowhere else. Where several do not
    answer this is a guess: `tally principal address` asks again.
    """
    answers = [_ask_whether(url, trust, clock, entropy, insecure) for url in urls]
    silent = _without(known, [one for one in answers if one is not None])
    found = [answer or (silent.pop(0) if silent else known[0]) for answer in answers]
    others = _without(known, found)
    if not others and len({one.subject for one in found}) == 1:
        return tuple(found[:1])  # several addresses of one node
    return (*found, *others)


def _ask_whether(url: str, trust: TrustFile, clock: Clock, entropy: Entropy, insecure: bool) -> Certificate | None:
    try:
        return ask_node(url, trust, clock, entropy, insecure)
    except Unavailable:
        return None


def _without(nodes: Sequence[Certificate], others: Sequence[Certificate]) -> list[Certificate]:
    left_out = {one.subject for one in others}
    return [one for one in nodes if one.subject not in left_out]
