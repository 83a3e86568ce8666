"""The ledger's rules, pure: a state, a transaction, a height and a block time come in, a result and changes of the
state go out. One file per contract; `execute` runs a transaction through them, whole or not at all."""
