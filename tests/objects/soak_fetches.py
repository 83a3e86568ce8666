"""`make soak` for fetching: one run of `test_fetch_simulation` after the other, each a function of its seed.

    PYTHONPATH=tests:tests/objects python tests/objects/soak_fetches.py --seed 7 --count 1000

It ends with the seed of the first that fails, which alone is to be run again.
"""

from __future__ import annotations

from soaking import soak
from test_fetch_simulation import check_run

if __name__ == "__main__":
    soak(check_run, "PYTHONPATH=tests:tests/objects python tests/objects/soak_fetches.py --seed {} --count 1", __doc__)
