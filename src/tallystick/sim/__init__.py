"""Worlds in one process, by a seed: `world` runs the whole spine (publishers, guards, log, ledger, authority,
subscribers) under loss, delay, repetition and crashes, and `checker` holds it to its promises; `forwarding` is the
network of a paper's figure. Seeds come in; outcomes, traces and violations go out. Nothing in the package imports from
here but the command line."""
