"""The smart city of BPS 5.1: a hospital and a home provider, two tenants that trust neither each other nor brokers."""

from __future__ import annotations

from actors import SCHEMA, await_topic
from stack import READ, WRITE, Stack

from tallystick.client.session import Session
from tallystick.ledger import entries

TOPICS = {"hospital": ("blood-pressure", "heart-rate"), "home": ("temperature", "humidity", "pollution")}


class City:
    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.owners = {tenant: stack.tenant(tenant) for tenant in TOPICS}
        self.tokens = {
            name: stack.topic(self.owners[tenant], name, SCHEMA) for tenant, names in TOPICS.items() for name in names
        }
        self.monitor, self.doctor = (stack.principal("hospital", name) for name in ("monitor", "doctor"))
        self.sensor, self.resident = (stack.principal("home", name) for name in ("sensor", "resident"))
        for tenant, publisher, subscriber in [
            ("hospital", self.monitor, self.doctor),
            ("home", self.sensor, self.resident),
        ]:
            for name in TOPICS[tenant]:
                stack.grant(self.owners[tenant], self.tokens[name], publisher, WRITE)
                stack.grant(self.owners[tenant], self.tokens[name], subscriber, READ)
        for token in self.tokens.values():
            await_topic(stack, token)

    def member(self, tenant: str, name: str, topic: str, operations: int, **options: object) -> Session:
        session = self.stack.principal(tenant, name)
        if operations:
            self.owners[tenant].author.write(
                entries.grant(self.tokens[topic], session.identity.principal, operations, **options)  # type: ignore[arg-type]
            )
        return session
