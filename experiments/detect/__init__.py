"""Detection on a CAN bus (seed 000, "AI deep learning layer"): what an attacker can still do, and what baselines find.

Drives of the simulated bus come in, drawn by a seed; out go CSV and plots under `build/experiments/detect/`.
"""
