"""A node or an authority as a process of its own, for tests that kill it: `node_child.py node|authority FOLDER PORT`.

It prints its port once it serves; whoever started it may kill it at any moment. Each imports its own part alone, as the
process that it stands for: it is started again and again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tallystick.node.instance import Folders
from tallystick.runtime.address import Address, Listen
from tallystick.runtime.sources import SystemClock


def run_node(folder: Folders, port: int) -> None:
    from tallystick.node.node import Node
    from tallystick.node.settings import NodeSettings

    node = Node(folder.node, SystemClock(), NodeSettings(port=port, commit_ms=20, window_ms=5))
    print(node.server.port, flush=True)
    node.run()


def run_authority(folder: Folders, port: int, node_url: str) -> None:
    from tallystick.authority.settings import AuthoritySettings
    from tallystick.node.authority import AuthorityProcess
    from tallystick.node.instance import open_node_keys
    from tallystick.runtime.sources import SystemEntropy
    from tallystick.trust.trustfile import TrustFile

    trust = TrustFile.parse(folder.trust.read_text())
    node = open_node_keys(folder.node, trust).certificate
    authority = AuthorityProcess(
        folder.authority,
        os.environb[b"TALLY_PASSPHRASE"],
        [Address(node_url, node.subject, node.verify_key)],
        SystemClock(),
        SystemEntropy(),
        settings=AuthoritySettings(revoke_s=1),
        listen=Listen(port=port),
    )
    print(authority.server.port, flush=True)
    authority.run()


def main() -> None:
    kind, folder, port, node_url = sys.argv[1], Folders(Path(sys.argv[2])), int(sys.argv[3]), sys.argv[4]
    if kind == "node":
        run_node(folder, port)
    else:
        run_authority(folder, port, node_url)


if __name__ == "__main__":
    main()
