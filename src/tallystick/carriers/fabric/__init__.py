"""The fabric: publications routed by the switches themselves (thesis, sections 4–6).

A publication is an Ethernet frame with a route header: an epoch and an opaque label that means something at one switch
only. Controllers that know policies and interests decide which label leads where; a switch matches bytes and exchanges
them for the next switch's. In come sealed parcels at a host's port, out they go at the ports of those whose
subscription matched.

What frames carry, and how it is put together and mended: `fragments.py`, `reassembly.py`, `repair.py`. A host's two
halves (`exchanging.py`) and its role (`agent.py`). What hosts and dispatchers say to each other: `control.py`. A
tenant's half of the controller: `dispatcher.py`, with what stands (`standing.py`) and who gets what (`matcher.py`). At
a node: `server.py`, with `host_station.py`; clients go by `direct.py`. The bytes are in
docs/formats/fabric.md.
"""
