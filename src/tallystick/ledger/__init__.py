"""The ordered, tamper-evident memory: transactions signed by their authors come in, pass the contracts and are kept
in blocks; receipts, proofs, histories and signed checkpoints go out. `contracts/` is pure and serves every engine;
`sqlite` is the embedded engine, `witness` cosigns, `memory` is what a client believes and accepts."""
