"""The embedded carrier: partitions of parcels as append-only segments on one disk.

In come sealed parcels, permits and locks that the guards took (carriers/front.py); out go the same bytes by offset, and
a report of what a crash or a failing disk took. Nothing here can open a parcel. `store.py` keeps opaque bytes and
objects by name: `segments.py` and `journal.py` are the file formats, `partition.py` one sequence of entries,
`recovery.py` its opening, `report.py` what recovery found, `limits.py` the bounds; `server.py` sets the store up at a
node.
"""
