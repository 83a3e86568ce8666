"""A carrier that keeps everything in memory: the example of docs/guides/carriers.md, and in the contract suite."""
