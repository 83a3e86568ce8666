"""The overlay: delivery through relays that may read, alter, drop, delay, misroute, replay and collude (SYNAPSE).

docs/overlay.md follows a parcel and its key through these files. What relays decide, without I/O, `relay.py` puts
together: who is where (`routing.py`, `membership.py`), a parcel's place and its anchor (`ordering.py`, `anchoring.py`),
parcels and keys on their way (`content_forwarding.py`, `secret_forwarding.py`), what came too late (`catching_up.py`).
Around that stand the node (`server.py`, `keeper.py`, `keeping.py`, `station.py`) and the client (`direct.py`).
"""
