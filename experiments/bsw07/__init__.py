"""Bethencourt, Sahai and Waters 2007, the scheme of the thesis (seed 004, section 6.2), as the baseline of our own."""
