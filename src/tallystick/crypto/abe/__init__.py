"""Attribute-based key encapsulation: a secret under a formula, opened by whoever holds attributes that satisfy it.

FABEO (Riepel and Wee 2022), the ciphertext-policy variant, on BLS12-381. A formula of `tallystick.policy` and a public
key come in, a capsule and a secret go out; an attribute key opens the capsule to the same secret. `sharing` splits the
secret over the formula and needs no library, `group` is all that touches `pymcl`, `keys` makes and carries keys,
`capsule` encapsulates and opens. Bytes are specified in docs/formats/policy-locks.md.
"""
