"""The show: set the stage, let honest people work, perform every scene, let Spark work, and say what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tallystick.demo import jobs, operator, permits, policies, publishing
from tallystick.demo.console import ConsoleBeside
from tallystick.demo.evidence import subscription
from tallystick.demo.impostor import Snapshot
from tallystick.demo.operator import READER, TOPIC
from tallystick.demo.scene import NotObserved, Performed, Scene, Seen, Verdict, perform
from tallystick.demo.spark import SparkProcess
from tallystick.demo.stage import READ, Stage
from tallystick.demo.traffic import GROUP, Pace, ReaderGroup, Size, check_clean, publish_all, read_all
from tallystick.errors import Misuse
from tallystick.ledger import entries


def _updates() -> list[Scene]:
    """None where there is no library for it (`tallystick[ota]`)."""
    try:
        from tallystick.demo import updates
    except Misuse:
        return []
    return updates.SCENES


OVER_THE_NETWORK: list[Scene] = [
    *(*permits.READING, *policies.scenes(), *publishing.SCENES),
    *(*permits.UNDOING, *_updates()),
]
ON_THE_DISK: list[Scene] = operator.SCENES
SECOND_PART = 0.1  # of the simulated time: what is published between the two copies of the ledger


@dataclass
class ToldScene:
    """What the demo has to tell."""

    folder: Path
    scenes: list[Performed] = field(default_factory=list)
    paces: dict[str, Pace] = field(default_factory=dict)
    report: Path | None = None
    again: str = ""  # the command that runs the instance once more, where its people look for it
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return all(scene.verdict is Verdict.STOPPED for scene in self.scenes)


class Show:
    """`run` once. `say` takes a line at every step; `attacks` names those to act out, or is empty for all."""

    def __init__(
        self,
        folder: Path,
        size: Size,
        *,
        with_spark: bool,
        say: Callable[[str], None],
        attacks: Collection[str] = (),
        console: ConsoleBeside | None = None,
    ) -> None:
        known = [scene.attack for scene in (*OVER_THE_NETWORK, *ON_THE_DISK)]
        if unknown := set(attacks).difference(known):
            raise Misuse(f"no such attack: {', '.join(sorted(unknown))}", hint=f"known are {', '.join(known)}")
        self._size, self._with_spark, self._say, self._attacks = size, with_spark, say, attacks or known
        self._console = console
        self._rows: Counter[str] = Counter()  # published by honest people, by topic
        self.told = ToldScene(folder)

    def run(self) -> ToldScene:
        stage = Stage(self.told.folder, self._size.vehicles)
        began = stage.clock.monotonic()
        if self._with_spark:
            stage.spark = SparkProcess(self.told.folder / "spark")
        with stage:
            self._say(f"node at {stage.node.url}, authority at {stage.authority.url}, two processes")
            node, authority = (urlsplit(child.url).port for child in (stage.node, stage.authority))
            self.told.again = f"tally up {stage.folders.root} --port {node} --authority-port {authority}"
            self._set_out(stage)
            if self._console is not None:
                self._console.open(stage)
            group = ReaderGroup(stage)
            self._work(stage, group, self._size)
            self._perform(stage, self._chosen(OVER_THE_NETWORK))
            self._copy(stage, group)
            self._perform(stage, self._chosen(ON_THE_DISK))
            self._perform(stage, [_afterwards(group, self._rows)])
            group.close()
            if stage.spark is not None:
                self._perform(stage, [jobs.scene(self._rows, self._say, self.told.paces)])
                report = jobs.report_of(self.told.folder)
                self.told.report = report if report.exists() else None
        self.told.seconds = stage.clock.monotonic() - began
        return self.told

    def _chosen(self, scenes: list[Scene]) -> list[Scene]:
        return [scene for scene in scenes if scene.attack in self._attacks]

    def _set_out(self, stage: Stage) -> None:
        stage.enrol_cast()
        analyst = stage.people[READER]
        subscription(analyst, TOPIC)
        if stage.spark is not None:
            from tallystick.pipeline.access import admit

            admit(str(analyst.identity.home), TOPIC).close()  # its permit is older than every copy
        self._say(f"2 tenants, {len(stage.people)} principals, {len(stage.tokens)} topics")

    def _work(self, stage: Stage, group: ReaderGroup, size: Size) -> None:
        published = publish_all(stage, size)
        for topic, pace in published.items():
            self._say(f"published to {topic}: {pace}, sealed and anchored")
            self._rows[topic] += pace.rows
        read = group.read(self._rows[TOPIC])
        self._say(f"a group of {len(group.members)} read telemetry: {read}, verified and opened, nothing found")
        if not self.told.paces:
            self.told.paces = {"publish telemetry": published[TOPIC], "read telemetry": read}

    def _copy(self, stage: Stage, group: ReaderGroup) -> None:
        """Copies of the node's disk before and after a right was withdrawn and more was published."""
        stage.snapshot = Snapshot(stage)
        analyst = stage.people[READER].identity.principal
        stage.owners["vitals"].author.write(entries.withdraw(stage.tokens["vitals"], analyst, int(READ)))
        self._work(stage, group, self._size.then(SECOND_PART))
        stage.snapshot.finish(READER, "homes")
        self._say("the operator copies the node's disk")

    def _perform(self, stage: Stage, scenes: list[Scene]) -> None:
        for scene in scenes:
            performed = perform(scene, stage)
            self.told.scenes.append(performed)
            if self._console is not None:
                self._console.add(performed)
            self._say(f"{performed.verdict}: {performed.attack}")


def _afterwards(group: ReaderGroup, published: Mapping[str, int]) -> Scene:
    """What all of it left behind for honest readers."""

    def look(stage: Stage) -> Seen:
        group.check_clean()
        with stage.people["doctor"].subscriber("vitals", on_bad="report") as subscriber:
            rows = read_all(subscriber)
            check_clean(subscriber)
        if rows < published["vitals"]:  # more came from the hands of the scenes
            raise NotObserved(f"the doctor read {rows:,} of {published['vitals']:,} rows")
        return Seen(
            f"the group's {sum(group.rows):,} rows and the doctor's {rows:,} came without a finding",
            f"offsets of group {GROUP}, on the ledger",
        )

    return Scene("all of the above, to honest readers", "every row once, and no finding", look)
