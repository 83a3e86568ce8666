"""Publishers and subscribers: the whole way of a record, in order. Rows, columns and an identity folder come in;
sealed parcels go out, verified batches come back, with findings where something was done to them. `publish.py` and
`subscribe.py` carry the numbers of docs/life-of-a-record.md."""
