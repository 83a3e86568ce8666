"""A principal's own way to Kafka: asked of the notary, kept in the identity's folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tallystick.carriers.kafka import FILE
from tallystick.carriers.kafka.credentials import open_credentials
from tallystick.carriers.remote import RemoteNode
from tallystick.identity.folder import Identity


def go_direct(identity: Identity, node: RemoteNode) -> Path:
    """Ask for a user and password of this principal's own; sessions opened from now on use Kafka themselves."""
    sealed = node.kafka_credentials(identity.certificate.encode())
    settings = open_credentials(sealed, identity.principal, identity.sealing_key)
    path = identity.home / FILE
    temporary = path.with_suffix(".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(settings, file, indent=1)
    temporary.replace(path)
    return path


def go_through_the_node(identity: Identity) -> None:
    """Back to the gateway: sessions opened from now on speak HTTP alone."""
    (identity.home / FILE).unlink(missing_ok=True)
