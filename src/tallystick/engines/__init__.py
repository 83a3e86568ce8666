"""Engines for development and tests on this machine: Kafka, a chain, a Spark cluster. `tally dev` starts them."""
