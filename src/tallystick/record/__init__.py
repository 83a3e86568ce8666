"""Records: what a topic's rows look like, and the one form in which they are hashed.

Rows, columns and frames come in (`gather`) and become a `Batch`: an Arrow record batch that was checked once
against a `Schema`. Out go its IPC message (`batch`), its canonical row bytes, the salted leaf hashes and
the Merkle root over them (`leaves`). Nothing here knows keys, signatures or topics' names; the
plaintext that comes back from a parcel is treated as hostile until `Batch.of` has passed it.
"""
