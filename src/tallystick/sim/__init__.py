"""Worlds made of protocol roles that no product needs but the evidence does: the networks of the papers' figures and of
the scenarios, run on the seeded `runtime.network`. Seeds, topologies and keys come in; roles whose counts can be read
go out. Nothing in the package imports from here but the command line."""
