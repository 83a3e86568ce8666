"""The thesis (seed 004): the cost of CP-ABE in its Figs 21 to 25, and the false positives of labels by their length.

Its scheme, BSW07, runs on our curve beside our own; its tables 1 and 2 are vectors in `tests/policy`.
"""
