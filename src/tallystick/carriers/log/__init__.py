"""The embedded carrier: partitions of parcels as append-only segments on one disk, the guards in front.

In come signed requests with sealed parcels, permits and locks; out go promises, the same bytes by offset with their
proofs, and a report of what a crash or a failing disk took. Nothing here can open a parcel. `carrier.py` is the order
of the steps, with `heads.py` (where lanes stand), `deposits.py` (permits, undo orders, locks), `anchored.py` (what the
ledger vouches for) and `selection.py` (labels). Below it `store.py` keeps opaque bytes: `segments.py` and `journal.py`
are the file formats, `partition.py` one sequence of entries, `recovery.py` its opening, `blobs.py` objects by name,
`report.py` what recovery found, `limits.py` the bounds.
"""
