"""`make bench-chain`: entries a second by batch size on SQLite, one and four validators, all on this machine.

`ledger_sqlite_N`, `ledger_1_N`, `ledger_4_N` hand in transactions of N operations, in order, and wait until the last
lies in a block; composing and signing is the node's work and not counted. The peer is the same engine with transactions
of one: a chain agrees on transactions, not on entries, so batching is most of its throughput (BPS 4.5, Fig. 7).
`latency_…` is one transaction alone, from handing in to the checkpoint that two thirds signed; `cpu_…` what the
ledger's process, or all validators and CometBFT together, spend on an entry, `bytes_…` what the disk of one takes for
it, blocks of CometBFT included. `chain_day_…` works out a fleet's day from them (`fleet_day`): a parcel every ten
seconds, one entry for each vehicle and minute, 512 a transaction; `…_each` is one entry for each parcel. `--costs`
measures these alone, `--days` works them out from the last results.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import harness
from harness import Case, Figure, Rate
from ledger_bench import NOW_MS, Fleet

from tallystick.engines.chain import chain_url, create_validators, found_chain, running, start_chain, stop_chain
from tallystick.engines.chain import validator_folders as folders_of
from tallystick.ledger.cometbft.client import ClientSettings, CometbftLedger
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.trustfile import TrustFile

SIZES = (1, 64, 512, 4096)
TARGETS = {("1", 512): 50_000, ("4", 512): 14_000}  # what a prototype with trivial rules held
ENTRIES, SINGLES = 65_536, 64  # a round, in batches (a second or more, so that it is not one block) and one by one
ROUNDS = 3
DAY_S = 86_400
FLEETS = (10_000, 1_000_000)
ENTRY_S = {"": 60, "_each": 10}  # aggregates of a minute; every parcel


@dataclass(frozen=True)
class Day:
    """What a fleet costs a chain in a day."""

    entries: int
    entries_s: float  # a second, on average
    core_hours: float  # of all validators and their CometBFT together
    disk_gib: float  # of each validator; nothing of a ledger is ever cut


def fleet_day(vehicles: int, entry_s: int, cpu_us: float, entry_bytes: float) -> Day:
    """A day of `vehicles` with an entry every `entry_s` seconds each, from the processor time (of all validators) and
    the bytes (of one) that an entry takes."""
    entries = vehicles * DAY_S // entry_s
    return Day(entries, entries / DAY_S, entries * cpu_us / 1e6 / 3600, entries * entry_bytes / (1 << 30))


class Writer:
    """A node that hands in its transactions one after the other and waits for the last."""

    def __init__(self, fleet: Fleet, size: int, count: int | None = None) -> None:
        self._fleet, self._written = fleet, fleet.operations(size, fleet.tokens)
        self._count = count or (SINGLES if size == 1 else ENTRIES // size)
        self.entries = size * self._count
        self.waiting: list[bytes] = []

    def compose(self) -> None:
        fleet = self._fleet
        self.waiting = [fleet.compose(fleet.node, fleet.node_key, self._written) for _ in range(self._count)]

    def hand_in(self) -> None:
        ledger = self._fleet.ledger
        for data in self.waiting:
            if isinstance(ledger, CometbftLedger):
                ledger._endpoints.attempt(lambda one, data=data: one.broadcast(data), 60)
            else:
                ledger.submit(data, NOW_MS)
                ledger.flush(NOW_MS)
        ledger.submit(self.waiting[-1], NOW_MS)


@contextmanager
def fleet_on(validators: int) -> Iterator[tuple[Fleet, Path]]:
    """A fleet on SQLite (0), or on a chain whose validators are processes of their own."""
    folder = Path(tempfile.mkdtemp(prefix="tally-bench-"))
    clock = SystemClock()
    try:
        if not validators:
            fleet = Fleet(str(folder))
        else:
            cards = create_validators(folder, validators, SystemEntropy())

            def start(trust: TrustFile) -> CometbftLedger:
                found_chain(folder, trust, int(clock.now() * 1000) - 1000)
                start_chain(folder, clock)
                return CometbftLedger(chain_url(folder), trust, clock, ClientSettings(submit_s=120))

            fleet = Fleet(str(folder), tuple(bytes.fromhex(card.note_key) for card in cards), start)
        yield fleet, folder
        fleet.ledger.close()
    finally:
        stop_chain(folder, clock)
        shutil.rmtree(folder, ignore_errors=True)


def processor_s(folder: Path) -> float:
    """What the chain's processes have spent so far, CometBFT's included; without a chain, what this one has."""
    validators = folders_of(folder)
    if not validators:
        return time.process_time()
    ticks = 0
    for one in validators:
        pid = running(one)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process in (str(pid), *children):
            words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".log")


def engine_cases(validators: int) -> Iterator[Case | Rate | Figure]:
    name = str(validators) if validators else "sqlite"
    with fleet_on(validators) as (fleet, folder):
        singles = Writer(fleet, 1)
        for size in SIZES:
            writer = Writer(fleet, size)

            def compose(writer: Writer = writer) -> None:
                writer.compose()
                singles.compose()

            yield Rate(
                f"ledger_{name}_{size}",
                writer.hand_in,
                writer.entries,
                "entries/s",
                waits=True,
                peer=singles.hand_in,
                peer_amount=singles.entries,
                before=compose,  # before each arm, so that its author's numbers are above all that were used
                rounds_max=ROUNDS,
                target=TARGETS.get((name, size)),
            )
        one = Writer(fleet, 1, count=1)
        yield Case(
            f"latency_{name}",
            lambda: wait_for(fleet, one.waiting[0]),
            before=one.compose,
            unit="ms/commit",
            waits=True,
            scale=1e3,
        )
        yield from costs(fleet, folder, name)


def wait_for(fleet: Fleet, data: bytes) -> None:
    placed = fleet.ledger.submit(data, NOW_MS)
    if not isinstance(fleet.ledger, CometbftLedger):
        fleet.ledger.flush(NOW_MS)
    fleet.ledger.wait(placed, 60)


def costs(fleet: Fleet, folder: Path, name: str) -> Iterator[Figure]:
    one, *others = folders_of(folder) or [folder]
    for size in (64, 512):
        writer = Writer(fleet, size)
        writer.compose()
        spent_s, held = processor_s(folder), bytes_of(one)
        writer.hand_in()
        if others:
            time.sleep(1)  # they follow
        cpu_us = (processor_s(folder) - spent_s) / writer.entries * 1e6
        size_bytes = (bytes_of(one) - held) / writer.entries
        yield Figure(f"cpu_{name}_{size}", cpu_us, None, "µs/entry")
        yield Figure(f"bytes_{name}_{size}", size_bytes, None, "bytes/entry")
    if one is folder:
        return  # an embedded ledger's day stands with the spine's numbers
    for vehicles in FLEETS:
        for kind, entry_s in ENTRY_S.items():
            day = fleet_day(vehicles, entry_s, cpu_us, size_bytes)
            label, cpu, disk = f"chain_day_{name}_{vehicles}{kind}", f"cpu_{name}_512", f"bytes_{name}_512"
            yield Figure(f"{label}_cpu", day.core_hours, None, "core hours/day", extrapolated=cpu)
            yield Figure(f"{label}_disk", day.disk_gib, None, "GiB/day", extrapolated=disk)


def costs_alone(validators: int) -> Iterator[Figure]:
    with fleet_on(validators) as (fleet, folder):
        yield from costs(fleet, folder, str(validators))


def days(found: Mapping[str, harness.Row]) -> str:
    """A table of fleets' days, from what an entry costs at 512 a transaction."""
    lines = [
        "| vehicles | entry every | entries/day | entries/s | validators | core hours/day, all | GiB/day, each |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for vehicles in FLEETS:
        for entry_s in ENTRY_S.values():
            for name in ("1", "4"):
                cpu_us, entry_bytes = (found[f"{kind}_{name}_512"]["ours"] for kind in ("cpu", "bytes"))
                day = fleet_day(vehicles, entry_s, cpu_us, entry_bytes)
                lines.append(
                    f"| {vehicles:,} | {entry_s} s | {day.entries:,} | {day.entries_s:,.0f} | {name} "
                    f"| {day.core_hours:,.1f} | {day.disk_gib:,.1f} |"
                )
    return "\n".join(lines)


SUBJECTS = {"sqlite": 0, "one": 1, "four": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description="benchmarks of the chain")
    parser.add_argument("--only", choices=SUBJECTS, action="append")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--costs", action="store_true", help="processor time and bytes for an entry alone")
    parser.add_argument("--days", action="store_true", help="run nothing, print what fleets cost as Markdown")
    parser.add_argument("--table", action="store_true", help="run nothing, print the results as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(harness.table(harness.read(harness.RESULTS, "chain")))
        return
    if arguments.days:
        print(days({one["name"]: one for one in harness.read(harness.RESULTS, "chain")}))
        return
    print(", ".join(f"{name} {value}" for name, value in harness.machine().items()))
    cases = costs_alone if arguments.costs else engine_cases
    for name in arguments.only or (("one", "four") if arguments.costs else SUBJECTS):
        started = time.monotonic()
        print(f"\n{name} (load {os.getloadavg()[0]:.1f})", flush=True)
        harness.keep("chain", harness.run(cases(SUBJECTS[name]), arguments.rounds))
        print(f"{name}: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
