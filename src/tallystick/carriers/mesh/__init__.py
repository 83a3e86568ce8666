"""The mesh: delivery that hides who publishes and who subscribes (AnonPubSub). Parcels come in whole, travel inside
envelopes from node to node, and come out at the nodes of those who subscribe; nothing is stored on the way.

What travels and what every hop checks of it: `envelope.py` and `advertisement.py` (both `certified.py`),
`mesh_keys.py`, `guard.py`. What an observer sees of a link: `cells.py`, `link_layer.py`; `pace.py` has waits by its
beats. What a node decides, without I/O, `mesh_node.py` puts together:
who its neighbours are (`membership.py`), where topics are published (`localisation.py`), which links a topic has
(`matching.py`), why the node is in its mesh (`community.py`), what passes (`distribution.py`), and what misleads an
observer (`forwarding.py`, `shell_game.py`). As a carrier: `server.py` at a principal's own node, with its keys
(`kit.py`), its socket (`station.py`), what leaves (`keeping.py`) and what comes (`arrivals.py`); clients go by
`direct.py`. docs/formats/mesh.md and mesh-frames.md have the bytes.
"""
