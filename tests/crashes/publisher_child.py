"""A publisher as a process of its own: `publisher_child.py HOME TOLD FIRST`.

It publishes rows from number FIRST on, for ever, and appends the numbers that it was told are stored to the file TOLD,
one line for each parcel, synced. A line that is whole was acknowledged; a killed process leaves at most one that is
not, which the reader of the file drops. So the file knows less than the process did, never more.
"""

from __future__ import annotations

import os
import sys
import time

from tallystick.client.publish import Publisher
from tallystick.client.session import Session
from tallystick.errors import TallystickError, Unavailable


def main() -> None:
    home, path, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
    told = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def acknowledge(rows: list[int]) -> None:
        os.write(told, (" ".join(map(str, rows)) + "\n").encode())
        os.fsync(told)

    publisher = start(Session.open(home))
    number = first
    print("publishing", flush=True)
    while True:
        rows = list(range(number, number + 5))

        def done(error: TallystickError | None, delivery: object, rows: list[int] = rows) -> None:
            if error is None:
                acknowledge(rows)

        publisher.send([{"row": row} for row in rows], done)
        number += 5
        publisher.poll(0.0)
        time.sleep(0.03)  # a load that leaves the machine time to start what was killed


def start(session: Session) -> Publisher:
    """Node or authority may be dead at this moment."""
    while True:
        try:
            return session.publisher("brakes", linger_s=0.0)
        except Unavailable:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
