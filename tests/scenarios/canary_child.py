"""The processes of the canary scenario, each in a process of its own: `canary_child.py node|authority|publisher …`.

A child prints one line of JSON when it is ready and lives until its standard input ends. Each imports its own part
alone, as the processes that it stands for.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tallystick.runtime.address import Address
from tallystick.runtime.sources import SystemClock


def node(root: str) -> None:
    from tallystick.node.node import Node
    from tallystick.node.settings import NodeSettings

    running = Node(Path(root) / "node", SystemClock(), NodeSettings(port=0, commit_ms=20, window_ms=5))
    threading.Thread(target=running.run, daemon=True).start()
    ready({"url": running.url})
    running.server.stop()


def authority(root: str, node_url: str) -> None:
    from stack import PASSPHRASE, TICK_S, wait_until

    from tallystick.node.authority import AuthorityProcess
    from tallystick.runtime.sources import SystemEntropy
    from tallystick.trust.certificate import Certificate

    certificate = Certificate.decode((Path(root) / "node" / "certificate").read_bytes())
    process = AuthorityProcess(
        Path(root) / "authority",
        PASSPHRASE,
        [Address(node_url, certificate.subject, certificate.verify_key)],
        SystemClock(),
        SystemEntropy(),
    )
    process.service._tick_s = TICK_S
    threading.Thread(target=process.run, daemon=True).start()
    wait_until(lambda: is_ready(process.authority.check_ready))
    invites = [
        process.authority.enrolment.create_tenant("acme"),
        *(process.authority.enrolment.invite_to("acme") for _ in range(2)),
    ]
    ready({"url": process.url, "invites": invites})
    process.stop()


def is_ready(check: Callable[[], None]) -> bool:
    from tallystick.errors import TallystickError

    try:
        check()
    except TallystickError:
        return False
    return True


def publisher(home: str, topic: str, column: str, row: str, policy: str) -> None:
    from tallystick.client.session import Session

    settings: dict[str, Any] = {"acks": "anchored", "anchor_check_s": 0.05, "linger_s": 0.0}
    with Session.open(home) as session:
        publisher = session.publisher(topic, **settings, policy=policy or None, hide_policy=True)
        published = [{column: f"{row}{number:06}"} for number in range(100)]
        publisher.send(published)
        assert publisher.flush(30) == 0
        secrets = next(iter(publisher._sealer._lanes.values())).secrets[-1]
        ready({"lane key": secrets.keys[0].key.hex()})
        publisher.stop()
        assert published


def ready(told: dict[str, object]) -> None:
    print(json.dumps(told), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {"node": node, "authority": authority, "publisher": publisher}
    roles[sys.argv[1]](*sys.argv[2:])
