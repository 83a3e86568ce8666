"""Walk through pages of the documentation as their reader would: every command, in order, in one folder.

    python scripts/walk.py                                    the README's quickstart
    python scripts/walk.py README.md docs/guides/policies.md  and then a guide, with what the quickstart made
    python scripts/walk.py --keep                             the folder stays, and is named in the end

What counts on a page:

- ```sh: commands. One that fails ends the walk with code 1. Whatever serves (`tally up`, `tally overlay up`) goes to
  the background, on free ports instead of 7411, 7412, 7421, 7422 and 7431, and the walk goes on when it says where
  it listens. The line `# Ctrl-C where tally up runs` ends it.
- ```text right behind commands: lines that these said, in this order, perhaps among others; … stands for anything.
- ```python: a program, from the first block with an import on. A block without one goes on with the program before it.
- ```console: commands that cannot be run here. The test suite has a list of them, with reasons.

Of the README only its quickstart counts. The folder has the checkout's `scripts` two levels up, as build/trial has.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.node.processes import free_ports

CHECKOUT = Path(__file__).resolve().parent.parent
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$|(\S[^\n]*)", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"(import|from) ")
MARK = "--- walk: "

# `serve` waits for one line of an address, or two of `tally up`, which runs two processes.
PREAMBLE = """
tally() {
  case "$1 $2" in
    "up "*)
      if [[ " $* " == *" --port "* ]]; then serve "$@"
      else serve "$@" --port $NODE_PORT --authority-port $AUTHORITY_PORT; fi ;;
    "notary "*) serve "$@" --port $NODE_PORT ;;
    "console "*) serve "$@" ;;
    "witness run" | "chain run" | "overlay up" | "mesh up" | "ota mirror") serve "$@" ;;
    "dev "*) echo "$2 down $PWD/$4" >> "$WALK/engines"; command tally "$@" ;;
    *) command tally "$@" ;;
  esac
}
serve() {
  local said lines=1
  said=$(mktemp "$WALK/served.XXXXXX")
  if [ "$1" = up ] && [[ " $* " != *-only* ]]; then lines=2; fi
  command tally "$@" > "$said" < /dev/null &
  served="${served:-} $!"
  until [ "$(grep -cE '://|^127[.]' "$said")" -ge $lines ]; do
    kill -0 $! 2> /dev/null || { echo "error: tally $* ended"; return 1; }
    sleep 0.1
  done
  cat "$said"
}
stop() {
  local one
  for one in ${served:-}; do kill "$one" 2> /dev/null || true; wait "$one" || true; done
  served=
}
finish() {
  stop
  touch "$WALK/engines"
  sort -u "$WALK/engines" | while read -r engine; do command tally dev $engine || true; done
}
trap finish EXIT
trap 'exit 130' INT TERM
set -e
"""


@dataclass
class Block:
    """Commands or a program, and what the page says that they say."""

    page: str
    language: str
    text: str
    said: list[str] = field(default_factory=list)


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page that its reader would type, in order; `console` is for the caller to leave out."""
    text = page.read_text(encoding="utf-8")
    if page.name == "README.md":
        text = text.partition("<!-- quickstart -->")[2].partition("<!-- end of quickstart -->")[0]
    before = program = None
    for language, inside, _prose in FENCED.findall(text):
        if language == "text" and before is not None:
            before.said = inside.splitlines()
        elif language == "python" and program is not None and not IMPORT.match(inside):
            program.text += inside
        elif language in ("sh", "console") or (language == "python" and IMPORT.match(inside)):
            before = Block(page.name, language, inside)
            program = before if language == "python" else program
            yield before
            continue
        before = None


def fits(said: list[str], output: str) -> str | None:
    """The first line of `said` that the output lacks, behind those before it; None if it has all."""
    lines = iter(output.splitlines())
    for wanted in said:
        pattern = ".*".join(map(re.escape, wanted.split("…")))
        if not any(re.fullmatch(pattern, line.rstrip()) for line in lines):
            return wanted
    return None


def script(steps: list[Block], folder: Path) -> str:
    parts = [PREAMBLE]
    for number, step in enumerate(steps):
        parts.append(f"echo '{MARK}{number}'\n")
        if step.language == "python":
            file = folder / f"program-{number}.py"
            file.write_text(step.text, encoding="utf-8")
            parts.append(f"python {file}\n")
        else:
            parts.append(re.sub(r"^# Ctrl-C where tally up runs$", "stop", step.text, flags=re.MULTILINE))
    return "".join([*parts, f"echo '{MARK}{len(steps)}'\n"])


def walk(pages: list[Path], folder: Path) -> int:
    """Returns 0 where every command did what its page says, else 1."""
    # A program is complete only when its page has been read.
    steps = [step for page in pages for step in list(blocks(page)) if step.language != "console"]
    trial = folder / "build" / "trial"
    trial.mkdir(parents=True)
    (folder / "scripts").symlink_to(CHECKOUT / "scripts")
    (folder / "home").mkdir()
    ports = [str(port) for port in free_ports(5)]
    text = script(steps, folder)
    for told, free in zip(("7411", "7412", "7421", "7422", "7431"), ports, strict=True):
        text = text.replace(told, free)
    (folder / "script").write_text(text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_PASS")}
    environment.pop("TALLY_HOME", None)
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    caches = {"NUMBA_CACHE_DIR": "tallystick/numba", "TALLY_ENGINES": "tallystick/engines"}
    own = {name: str(Path.home() / ".cache" / place) for name, place in caches.items() if name not in environment}
    ours = {"PATH": path, "WALK": str(folder), "NODE_PORT": ports[0], "AUTHORITY_PORT": ports[1], **own}
    process = subprocess.Popen(
        ["bash", str(folder / "script")],
        cwd=trial,
        env={**environment, **ours, "HOME": str(folder / "home"), "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            return follow(process, steps)
        finally:
            process.terminate()  # it ends what it serves, and engines
            process.communicate()


def follow(process: subprocess.Popen[str], steps: list[Block]) -> int:
    """Show what is said, and hold each block to its page."""
    assert process.stdout is not None
    number, said = -1, ""
    for line in process.stdout:
        if not line.startswith(MARK):
            said += line
            print(line, end="", flush=True)
            continue
        if number >= 0 and (lacking := fits(steps[number].said, said)) is not None:
            print(f"error: {steps[number].page} shows a line that was not said: {lacking}", flush=True)
            return 1
        number, said = int(line.removeprefix(MARK)), ""
        if number < len(steps):
            print(f"[{steps[number].page}]\n{steps[number].text}", end="", flush=True)
    if process.wait() or number < len(steps):
        print(f"error: {steps[number].page}: a command ended with code {process.returncode}", flush=True)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, default=[CHECKOUT / "README.md"])
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    folder = Path(tempfile.mkdtemp(prefix="walk-"))
    try:
        return walk(given.pages, folder)
    finally:
        if given.keep:
            print(f"everything is in {folder}")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
