"""The embedded carrier: partitions of parcels as append-only segments on one disk.

In come sealed parcels that the guards have let pass, as opaque header and body bytes under their hash,
locks under theirs, and the node's own records of pending operations; out go the same bytes by offset, the
Merkle tree of each partition, and a report of what a crash or a failing disk took. Nothing here can open a
parcel. `store.py` is the front; `segments.py` and `journal.py` are the file formats, `partition.py` one
sequence of entries, `recovery.py` its opening, `blobs.py` the locks, `report.py` what recovery found,
`limits.py` the bounds.
"""
