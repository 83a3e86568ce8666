#!/usr/bin/env bash
# Runs the quickstart of the README, word for word, in a temporary folder: the commands are taken from its fenced
# blocks, so that they cannot drift. `tally up` goes to the background, everything else one after the other.
#
#   scripts/quickstart.sh            in a fresh folder, removed afterwards
#   KEEP=1 scripts/quickstart.sh     the folder stays, and is named in the end
set -euo pipefail

checkout=$(cd "$(dirname "$0")/.." && pwd)
PATH="$checkout/.venv/bin:$PATH"
unset TALLY_HOME TALLY_PASSPHRASE TALLY_PASSPHRASE_FILE
command -v tally >/dev/null || { echo "error: tally is not installed" >&2; echo "hint: make setup" >&2; exit 2; }

folder=$(mktemp -d)
up=
finish() {
  if [ -n "$up" ]; then kill "$up" 2>/dev/null || true; wait "$up" 2>/dev/null || true; fi
  if [ -n "${KEEP:-}" ]; then echo "everything is in $folder"; else rm -rf "$folder"; fi
}
trap finish EXIT
trap 'exit 130' INT TERM
# As in a checkout: the README works in build/trial, and finds scripts two folders up.
mkdir -p "$folder/build/trial"
ln -s "$checkout/scripts" "$folder/scripts"
cd "$folder/build/trial"

# Ports that are free, where the usual ones may be taken: the README's own instance would use 7411 and 7412.
start_up() {
  tally up fleet --port 0 --authority-port 0 > up.out &
  up=$!
  until [ "$(grep -c http up.out)" = 2 ]; do
    kill -0 "$up" 2>/dev/null || { echo "error: tally up ended" >&2; exit 1; }
    sleep 0.1
  done
  cat up.out
}

story() { awk '/<!-- quickstart -->/ { on = 1 } /<!-- end of quickstart -->/ { on = 0 } on' "$checkout/README.md"; }

story | awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' > commands
story | awk '/^```python$/ { on = 1; next } /^```$/ { on = 0 } on' > story.py
[ -s commands ] && [ -s story.py ] || { echo "error: the README has no quickstart" >&2; exit 1; }

while IFS= read -r line <&3; do
  echo "\$ $line"
  if [ "$line" = "tally up fleet" ]; then start_up; else eval "$line"; fi
done 3< commands
echo "\$ python story.py"
python story.py
