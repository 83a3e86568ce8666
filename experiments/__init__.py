"""The papers' figures, each a function of a seed: `experiments/<paper>/figNN.py` states the claim, the parameters and
the band in which we expect to land, and writes a CSV and a plot under `build/experiments/`. Run from a checkout, as
`python -m experiments.eventguard.fig03`."""
