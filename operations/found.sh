#!/bin/sh
# Found, once, the instance that compose.yml runs: keys of four validators, trust file, node, authority, and certificates
# of a CA of its own. In earnest each validator is another operator's, who draws its keys elsewhere (docs/guides/chain.md).
#
#   operations/found.sh FOLDER     makes FOLDER/{node,authority,validator-0…3,public}
set -eu
tools=$(cd "$(dirname "$0")" && pwd)
cd "$1"
if [ -e public/founded ]; then exit 0; fi
if [ -e node/trust.json ]; then
    echo "error: $1/node holds an instance, and $1/public does not say that it was finished: remove the volumes" >&2
    exit 1
fi
umask 077
rm -rf new node/* authority/* validator-?/*  # of an attempt that was cut short

for name in validator-0 validator-1 validator-2 validator-3; do
    tally chain init "$name" --rpc "$name:26657" --p2p "$name:26656"
done
tally init new --name compose --host node \
    --ledger cometbft://validator-0:26657,validator-1:26657,validator-2:26657,validator-3:26657 \
    --validator validator-0/validator.json --validator validator-1/validator.json \
    --validator validator-2/validator.json --validator validator-3/validator.json
tally chain genesis validator-?/validator.json --trust new/trust.json -o new/genesis.json
for name in validator-0 validator-1 validator-2 validator-3; do
    tally chain join "$name" validator-?/validator.json --trust new/trust.json --genesis new/genesis.json
done

# A certificate each for node and authority. The CA's key goes when they are made.
quietly() { "$@" 2>/dev/null; }
certify() {
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -extensions usr_cert \
        -CA public/ca.pem -CAkey ca.key -subj "/CN=$1" -addext "subjectAltName=DNS:$1" -keyout "$1/tls.key" -out "$1/tls.pem"
}
mkdir -p public node authority
quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 366 \
    -subj "/CN=tallystick compose" -keyout ca.key -out public/ca.pem
certify node
certify authority
rm ca.key

cat >> new/node/node.toml <<END
tls_certificate = "tls.pem"
tls_key = "tls.key"
carrier = "kafka://kafka:9092"
END
here=$(pwd)
sh "$tools/split.sh" new authority authority
sed -i "s|\"tls\\.|\"$here/authority/tls.|" authority/node/node.toml
sed -i "s|\"tls\\.|\"$here/node/tls.|" new/node/node.toml
mv new/* node/
rmdir new
mv node/root.key authority/  # it is needed for new nodes and authorities only: take it off the machine
chmod 755 public
chmod 644 public/ca.pem
touch public/founded
