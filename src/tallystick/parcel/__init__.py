"""Parcels: a batch sealed by a publisher so that carriers can neither read nor alter it. Batches and lane keys come
in, bytes go out; and back: bytes → `Parcel` (well-formed) → `VerifiedParcel` (every check passed) → `Batch`."""
