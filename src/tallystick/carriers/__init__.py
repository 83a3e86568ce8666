"""Carriers move parcels: `log` on this machine's disk, `kafka`, `overlay`, `mesh` and `fabric`. Parcels and permits
come in through the guards; promises, ranges with their proofs, and operations for the ledger go out. What all share
is here: the client's side of a carrier (`carrier.py`, `remote.py`), its HTTP face (`desk.py`), the front
with the guards (`front.py`) and what it keeps of lanes and principals (`heads.py`, `accounts.py`), the scribe that
writes operations and anchors (`scribe.py`)."""
