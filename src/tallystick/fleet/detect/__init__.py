"""Intrusion detection on a CAN bus: who adds frames, silences a sender, or speaks in its name.

Frames of one vehicle come in, in order of time; out go hits, gathered to alerts that say which signal lied and what was
expected. What is usual on this bus is its profile, learnt from minutes of benign driving and held by a
signature. Edge, stream and batch call the same code, and get equal scores however the frames are cut into batches.
"""
