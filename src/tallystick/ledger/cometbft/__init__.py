"""The ledger on a Byzantine-fault-tolerant chain. `application` runs the contracts inside each validator, on the same
file, tree and state map as the embedded engine; `client` is the engine that a node of ours uses: transactions go in
over any validator's RPC, answers come out with proofs under checkpoints that two thirds of the validators signed.
`queries` is what the two say to one another, `rpc` how, `roots` what a header of the chain commits to, `snapshot` how a
validator joins without the whole history, `light` how a header is believed, `home` the files of a CometBFT node."""
