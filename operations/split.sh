#!/bin/sh
# Move the authority of a new instance to a folder of its own, which another user or machine has: the node then sees no
# key that opens anything. Both must be stopped.
#
#   operations/split.sh INSTANCE TARGET HOST     HOST is where the authority will listen
set -eu
instance=$1 target=$2 host=$3

mkdir -p "$target/node"
cp "$instance/trust.json" "$target/"
cp "$instance/node/certificate" "$target/node/"
sed "s/^host = .*/host = \"$host\"/" "$instance/node/node.toml" > "$target/node/node.toml"
mv "$instance/authority" "$target/"
if [ -e "$instance/passphrase" ]; then mv "$instance/passphrase" "$target/"; fi
