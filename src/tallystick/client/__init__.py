"""Publishers and subscribers: the whole way of a record, in order. Rows, columns and an identity folder come in;
sealed parcels go out, verified batches come back, with findings where something was done to them. A record goes down
`publish.py`, `sealing.py`, `sending.py`, `anchoring.py`, and comes up `subscribe.py`: they carry the numbers of
docs/life-of-a-record.md."""
