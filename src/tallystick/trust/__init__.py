"""What is signed and travels: trust file, certificates, permits, undo orders, promises, anchors, checkpoints,
cosignatures, receipts and request envelopes. Bytes come in, checked frozen values go out; each knows how it is
encoded and how it is verified, and nothing here decides whether it should be issued."""
