"""`python -m experiments.cube [--seed N] [--quick] [--only STUDY …] [--out DIR]`"""

import sys

from experiments.cube.ablations import main

if __name__ == "__main__":
    sys.exit(main())
