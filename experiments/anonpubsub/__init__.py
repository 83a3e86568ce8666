"""AnonPubSub (seed 001): who can tell a subscriber from a forwarder, by what rule, and what it costs to stop them. In
come graphs of neighbours drawn by a seed; out go CSV and plots under `build/experiments/anonpubsub/`.

The simulator and the attackers are in `tallystick.sim.anonymity`, where `tally mesh attack` has them too; there
`entering.py` makes M_a as the product's nodes do, and `tests/mesh/test_mesh_simulator.py` holds it against them. Here
are the figures, one file for each, and what goes beyond the paper: rounds, inside, timing, late, scale, tradeoff.

We say topic and link beat where the paper says attribute and heartbeat. Its plots, Table 1 and the procedure
`shellGame` are not in our copy: the values are those of its prose, and `docs/benchmarks.md` has them beside ours. Where
a band is not the paper's (all of those for the stronger attackers), it was set after a first run, and holds a figure
where it is.
"""
