"""Publishers and subscribers: the whole way of a record, in order. Rows, columns and an identity folder come in;
sealed parcels go out, verified batches come back, with findings where something was done to them. A record goes down
`publish.py`, `outbox.py`, `hands.py`, and comes up `fetching.py`, `reader.py`, `opening.py`,
`subscribe.py`, with the numbers of docs/life-of-a-record.md."""
