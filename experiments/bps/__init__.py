"""BPS (seed 003): its Figs 7 to 12, each beside the paper's values. In come the arms that `benchmarks/` measures
with (a folder of scripts, so it is put on the path here); out go CSV and plots under `build/experiments/bps/`.

The paper gives means of five runs, 2 to 10 million messages, on two servers of 24 cores; its plots are not in our copy,
so the values are those of its prose. A default run here is a hundredth of that, once; `--full` is the paper's scale.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
