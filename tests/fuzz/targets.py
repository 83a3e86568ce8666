"""What the fuzz targets share: start atheris, or say kindly that it is missing; and the one rule of all of them.

A target hands bytes to a decoder. Errors of our family are answers; any other exception, a crash, a hang or memory
beyond libFuzzer's limit (`-rss_limit_mb`) is a finding, and its input is written into build/fuzz/.

The long tier runs every target for some seconds, `make fuzz` for as long as one likes, and by hand it is one for a
minute: `python tests/fuzz/fuzz_body.py -max_total_time=60`. atheris is the extra `fuzz`: it has wheels for Linux on
x86-64 alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

BUILD = Path("build") / "fuzz"

sys.path.insert(0, str(Path(__file__).parents[1]))


def load_atheris() -> Any:
    try:
        return import_module("atheris")
    except ImportError:
        sys.exit("error: atheris is not installed\nhint: pip install 'tallystick[fuzz]'")


def run(decoders: list[Callable[[bytes], Any]], examples: list[bytes]) -> None:
    """Fuzz: the first byte of the input chooses the decoder, and good examples are where libFuzzer begins."""
    atheris = load_atheris()
    from tallystick.errors import TallystickError

    def one_input(data: bytes) -> None:
        if data:
            with suppress(TallystickError):
                decoders[data[0] % len(decoders)](data[1:])

    for number, example in enumerate(examples):  # a good example that is refused would make the run worthless
        decoders[number](example)
    corpus = _seeds(examples)
    atheris.Setup([*sys.argv, f"-artifact_prefix={BUILD}/", *corpus], one_input)
    atheris.Fuzz()


def _seeds(examples: list[bytes]) -> list[str]:
    """The examples as a corpus folder, unless the caller named one."""
    if any(not argument.startswith("-") for argument in sys.argv[1:]):
        return []
    folder = BUILD / Path(sys.argv[0]).stem
    folder.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(examples):
        (folder / f"example-{number}").write_bytes(bytes([number]) + example)
    return [str(folder)]
