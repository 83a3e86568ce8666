"""What people would rather see than type: a process of the viewer's own, on loopback. Checkpoints, blocks and proofs
come in from a node that is not believed; pages go out that say what was checked here and what was only told.

`mirror.py` replays the ledger and keeps it, `door.py` says who may come in, `app.py` serves, `layout.py` is what all
pages share, `pages/` has one file a subject and their registry. Nothing here writes to node, authority or ledger.
"""
