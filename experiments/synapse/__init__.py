"""SYNAPSE (seed 000, the appendix): why a key is split again at every hop, and what that costs. In come trees of 400
brokers drawn by a seed, and the interactions of a drawn or a real social graph; out go CSV and plots under
`build/experiments/synapse/`.

Figures carry the numbers of the paper's text, which are mostly those of its captions minus one. The plots are not in
our copy, so the values are those of its prose; `docs/benchmarks.md` has them beside ours. Algorithm 1 and network
coding exist here only: no setting of the product reaches them.
"""
