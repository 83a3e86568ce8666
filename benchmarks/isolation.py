"""`make bench-isolation`: what an honest tenant feels of a hostile one on the same instance.

Node and authority are processes with the settings of a new instance. The honest tenant publishes a parcel of 64
records and waits for its promise, fetches and opens the first parcels of its topic with full verification, and enrols
a new principal, each in a steady pace in a thread of this process. The hostile tenant does everything of
`isolation_attacks` at once, in processes of its own, as fast as its quotas allow: told to wait, it waits. With
`--flood` it does not.

`honest_publish`, `honest_fetch`, `honest_enrol`: the p99 in a quiet phase ÷ the p99 in an attacked one, phases in
turns; the ratio is the median of the rounds'. Attackers run at the lowest priority, since they would have machines of
their own: what node and authority do for their sake is in the ratio, what they do themselves hardly is. `attack_…` are
requests a second; each row has how many were refused.
`--quick` is one short round, to see that it works.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import data
import harness
from isolation_attacks import ALL, ATTACKS, persist
from node import Served

from tallystick.client.session import Session
from tallystick.crypto.passphrase import Cost
from tallystick.errors import TallystickError, Unavailable
from tallystick.identity.enrol import enrol
from tallystick.ledger import entries
from tallystick.node.instance import Folders, create_instance, create_node
from tallystick.node.settings import NodeSettings
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.permit import Operation

SUITE = "isolation"
TARGET = 0.5
ROWS = 64
PACES_S = {"honest_publish": 0.05, "honest_fetch": 0.05, "honest_enrol": 0.25}  # from one to the next, at least
PASSPHRASE = b"p"


@dataclass(frozen=True)
class Plan:
    rounds: int = 5
    phase_s: float = 12.0
    settle_s: float = 3.0  # between phases: what was asked in one is done before the next begins
    processes: int = 3
    manner: str = "heed"  # or flood
    attacks: tuple[str, ...] = tuple(ATTACKS)


QUICK = Plan(rounds=1, phase_s=0.5, settle_s=0.1, processes=1)


class Instance:
    """Node and authority in processes, and the two tenants."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folders, self._stack = Folders(folder), stack
        self._clock, self._entropy = SystemClock(), SystemEntropy()
        now_ms, settings = int(self._clock.now() * 1000), NodeSettings(port=0)
        cost = Cost(32, 1, 1)
        self._trust = create_instance(folder, "bench", PASSPHRASE, settings, now_ms, self._entropy, cost=cost)
        self._node = Served("node", self._folders.node)
        stack.push(self._node.__exit__)
        self._authority = Served("authority", self._folders.authority, self._node.url, "honest", "hostile")
        stack.push(self._authority.__exit__)
        invites = [self._authority.read_line() for _ in range(6)]
        self.owner, self.car, self.reader = map(self.enrol, ("owner", "car", "reader"), invites)
        self.hostile = self.enrol("hostile", invites[3])
        other = create_node(folder, folder / "elsewhere", PASSPHRASE, settings, now_ms, self._entropy)
        self.owner.author.write(entries.enrol(other))
        token = self.owner.create_topic("honest", data.SCHEMA.encode())
        told = {"token": token, "elsewhere": other.subject, "principal": self.reader.identity.principal}
        self.told = {key: value.hex() for key, value in told.items()}
        for session, operation in ((self.car, Operation.ADVERTISE), (self.reader, Operation.SUBSCRIBE)):
            self.owner.author.write(entries.grant(token, session.identity.principal, ALL))
            while not self._is_permitted(session, operation):  # the authority follows the ledger
                time.sleep(0.05)

    def enrol(self, name: str, invite: str) -> Session:
        identity = enrol(
            *(self._folders.root / "homes" / name, name, invite),
            trust=self._trust,
            authority_url=self._authority.url,
            node_urls=(self._node.url,),
            clock=self._clock,
            entropy=self._entropy,
        )
        return self._stack.enter_context(Session(identity))

    def _is_permitted(self, session: Session, operation: Operation) -> bool:
        try:
            session.authority.permit(operation, "honest")
        except TallystickError:
            return False
        return True


class Honest:
    """What the honest tenant does: each act prepares, and returns what is timed."""

    def __init__(self, instance: Instance, stack: ExitStack) -> None:
        self._instance, self._enrolled, self.failed = instance, 0, Counter[str]()
        self._publisher = instance.car.publisher("honest", batch_rows_max=ROWS, heartbeat_s=3600.0, acks="stored")
        stack.callback(self._publisher.stop)
        self._publish(data.columns(ROWS))
        self._subscriber = stack.enter_context(instance.reader.subscriber("honest", fetch_bytes_max=1 << 16))
        while not self._subscriber.poll(100):
            pass
        self.acts = dict(zip(PACES_S, (self._publishing, self._fetching, self._enrolling), strict=True))

    def _publishing(self) -> Callable[[], object]:
        batch = data.columns(ROWS)
        return lambda: self._publish(batch)

    def _publish(self, batch: Any) -> None:
        self._publisher.send(batch)
        if self._publisher.flush(60):
            raise Unavailable("a parcel was not stored within a minute")

    def _fetching(self) -> Callable[[], object]:
        self._subscriber.seek(0, 0)
        return lambda: self._subscriber.poll(1000)

    def _enrolling(self) -> Callable[[], object]:
        self._enrolled += 1
        name, invite = f"newcomer-{self._enrolled}", persist(self._instance.owner.authority.invite)
        return lambda: self._instance.enrol(name, invite)


def measure_phase(honest: Honest, seconds: float) -> dict[str, float]:
    """The p99 of each act in ms."""
    took: dict[str, list[float]] = {name: [] for name in honest.acts}

    def repeat(name: str) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or not took[name]:
            timed = honest.acts[name]()
            began = time.monotonic()
            try:
                timed()
            except TallystickError as error:  # as long as it took to fail
                say(f"{name} failed: {error}")
                honest.failed[name] += 1
            spent = time.monotonic() - began
            took[name].append(1000 * spent)
            time.sleep(max(0.0, PACES_S[name] - spent))

    threads = [threading.Thread(target=repeat, args=(name,)) for name in honest.acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: p99(values) for name, values in took.items()}


def p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


class Attackers:
    """The processes of the hostile tenant."""

    def __init__(self, instance: Instance, scratch: Path, plan: Plan, stack: ExitStack) -> None:
        script, path = Path(__file__).with_name("isolation_attacks.py"), os.environ.get("PYTHONPATH", "")
        arguments = [str(instance.hostile.identity.home), str(scratch), json.dumps(instance.told), plan.manner]
        self._processes = []
        for number in range(plan.processes):
            process = subprocess.Popen(
                [sys.executable, str(script), *arguments, *plan.attacks[number :: plan.processes]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(script.parent), path]))},
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            self._processes.append(process)
        if any(self._line(process) != "ready" for process in self._processes):
            raise SystemExit("error: an attack could not be prepared; see above")

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def tell(self, word: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(word + "\n")
            process.stdin.flush()

    def stop(self) -> dict[str, list[int]]:
        """Requests, and how many were refused, of each attack."""
        self.tell("stop")
        return {name: told for process in self._processes for name, told in json.loads(self._line(process)).items()}


def say(text: str) -> None:
    print(f"{time.process_time():6.1f} {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure(plan: Plan) -> list[harness.Row]:
    quiet: dict[str, list[float]] = {name: [] for name in PACES_S}
    attacked: dict[str, list[float]] = {name: [] for name in PACES_S}
    requests, refused, spent = Counter[str](), Counter[str](), 0.0
    with tempfile.TemporaryDirectory(prefix="tally-isolation-") as name, ExitStack() as stack:
        folder = Path(name)
        instance = Instance(folder / "instance", stack)
        honest = Honest(instance, stack)
        say("the instance is there")
        attackers = Attackers(instance, folder / "hostile", plan, stack)
        say("the attacks are prepared")
        for number in range(plan.rounds):
            time.sleep(plan.settle_s)
            calm = measure_phase(honest, plan.phase_s)
            attackers.tell("go")
            began = time.monotonic()
            time.sleep(plan.settle_s)
            hit = measure_phase(honest, plan.phase_s)
            spent += time.monotonic() - began
            for attack, (sent, away) in attackers.stop().items():
                requests[attack] += sent
                refused[attack] += away
            for act in PACES_S:
                quiet[act].append(calm[act])
                attacked[act].append(hit[act])
            told = ", ".join(f"{act} {calm[act]:.0f} → {hit[act]:.0f} ms" for act in PACES_S)
            say(f"round {number + 1} of {plan.rounds}: {told}")
    found = []
    for act in PACES_S:
        compared = harness.compare(act, attacked[act], quiet[act], "ms", TARGET)
        found.append({**asdict(compared), "failed": honest.failed[act]})
    for attack in plan.attacks:
        row = harness.Result(
            *(f"attack_{attack}", requests[attack] / spent, None, "requests/s", None, None, plan.rounds)
        )
        found.append({**asdict(row), "requests": requests[attack], "refused": refused[attack]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="an honest tenant beside a hostile one")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--only", choices=ATTACKS, action="append", help="an attack; without it all of them")
    parser.add_argument("--flood", action="store_true", help="attackers that come back at once when told to wait")
    parser.add_argument("--rounds", type=int, help="how many; five, or one with --quick")
    parser.add_argument("--into", type=Path, default=harness.RESULTS, help="the folder for isolation.json")
    arguments = parser.parse_args()
    harness.commit()
    print(", ".join(f"{name} {value}" for name, value in harness.machine().items()))
    print(f"load {os.getloadavg()[0]:.1f}")
    plan = QUICK if arguments.quick else Plan()
    attacks, rounds = tuple(arguments.only or ATTACKS), arguments.rounds or plan.rounds
    manner = "flood" if arguments.flood else plan.manner
    rows = measure(replace(plan, attacks=attacks, rounds=rounds, manner=manner))
    harness.merge(arguments.into, SUITE, rows)
    print(harness.table(rows[: len(PACES_S)]))
    print(attack_table({row["name"]: row for row in rows}))


def attack_table(rows: Mapping[str, harness.Row]) -> str:
    """What the hostile tenant did, as Markdown."""
    lines = ["| attack | requests/s | refused | |", "|---|--:|--:|---|"]
    for name in [name for name in rows if name.startswith("attack_")]:
        row, attack = rows[name], name.removeprefix("attack_")
        share = 100 * row["refused"] / max(1, row["requests"])
        told = " ".join((ATTACKS[attack].__doc__ or "").split())
        lines.append(f"| {attack} | {harness.number(row['ours'])} | {share:.0f} % | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
