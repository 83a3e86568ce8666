"""Writers as processes of their own: `writer_child.py HOME TOPIC FOLDER`, then a line for each: `BATCH POINT`.

For every line a process is forked that writes the rows of a batch in two parts and commits them, and kills itself at
the point named, if one is; the answer is its exit status. One process imports for all of them.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from kill_points import install

from tallystick.client.session import Session
from tallystick.client.writes import Committer, PartWriter, held
from tallystick.parcel.commit import CommitList, WrittenRun
from tallystick.trust.permit import Operation

ROWS = 6  # a batch's, of two parts; a parcel each
WRITE = b"w" * 32


def write(home: str, topic: str, folder: Path, batch: int) -> None:
    runs: list[WrittenRun] = []
    with Session.open(home) as session:
        for part in range(2):
            lane = folder / f"lane {part}"
            numbers = range(batch * ROWS + part, (batch + 1) * ROWS, 2)
            with held(lane):
                rows = iter([[{"seq": number}] for number in numbers])
                runs += PartWriter(session, topic, lane).write((WRITE, batch), rows)
        token = session.grants.obtain(Operation.ADVERTISE, topic).grant.token
        Committer(session, topic, folder / "lists").commit(CommitList(token, WRITE, batch, tuple(runs)))


def main() -> None:
    home, topic, folder = sys.argv[1:]
    print("ready", flush=True)
    for line in sys.stdin:
        batch, _, point = line.strip().partition(" ")
        child = os.fork()
        if not child:
            if point:
                install(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
            write(home, topic, Path(folder), int(batch))
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
