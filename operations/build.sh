#!/bin/sh
# From a source tree to an installed tally: what the Containerfile runs, and a test in a fresh folder.
#
#   operations/build.sh SOURCE TARGET [EXTRAS]     makes the virtual environment TARGET
set -eu
source=$1 target=$2 extras=${3:-kafka}

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"${PYTHON:-python3}" -m venv "$target"
"$target/bin/pip" wheel --quiet --no-deps --wheel-dir "$wheels" "$source"
set -- "$wheels"/tallystick-*.whl
"$target/bin/pip" install --quiet --constraint "$source/constraints.txt" "$1[$extras]"
"$target/bin/tally" --version
