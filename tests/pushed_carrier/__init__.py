"""A carrier of the tests that stores nothing: what is sent into the air is pushed to the node that listens."""
