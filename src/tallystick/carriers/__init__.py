"""Carriers move parcels: `log` on this machine's disk, `kafka`, `overlay`, `mesh` and `fabric`. Parcels and permits
come in through the guards; promises, ranges with their proofs, and operations for the ledger go out. What all share
is here: the client's side of a carrier (`carrier.py`, `remote.py`), its HTTP face (`service.py`), signed requests as
acts (`acts.py`), the scribe that writes operations and anchors, quotas."""
