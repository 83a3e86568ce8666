"""The sharp primitives, each wrapped so that it is hard to hold wrongly.

Key derivation with registered labels, one-time and wrapped AEAD, hybrid HPKE, signatures under contexts, RFC
6962 trees, the block tree of bodies, the sparse Merkle map, secrets under a passphrase, Shamir's sharing and a
group of prime order for shares that can be verified. Plain bytes come in; bytes, or a `Forged`, `CannotOpen` or
`Malformed`, go out. Time and entropy are arguments, with two exceptions that the library underneath leaves no
choice about: HPKE encapsulation and the ML-DSA half of a root signature draw their own.
"""
