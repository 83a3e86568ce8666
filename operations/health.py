"""A container's health check: ends with 0 where the URL answers 200. What it says is shown by `inspect`."""

import sys
import urllib.error
import urllib.request

ANSWER_S = 5.0

try:
    with urllib.request.urlopen(sys.argv[1], timeout=ANSWER_S) as answer:  # noqa: S310
        print(answer.read(500).decode(errors="replace").strip())
except urllib.error.HTTPError as error:
    sys.exit(f"{error.code}: {error.read(500).decode(errors='replace').strip()}")
except OSError as error:
    sys.exit(str(error))
