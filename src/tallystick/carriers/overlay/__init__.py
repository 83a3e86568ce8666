"""The overlay: delivery through relays that may read, alter, drop, delay, misroute, replay and collude (SYNAPSE).

Here so far is what is decided without I/O. How a secret passes through virtual nodes: `trust/shares.py` has what relays
say to one another, as bytes, `redistribution.py` the mathematics. How content does: `content.py` says which relay
carries which part. Where publications go: `claims.py` is what principals say about themselves, `routing.py` which of
that counts, `tables.py` what follows. Which relays form which virtual node: `placement.py`; how they come and go:
`membership.py`. There is no carrier yet.
"""
