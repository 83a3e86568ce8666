"""The authority, a process of its own: it enrols principals, names topics, keeps their schemas and key pairs, issues
and takes back permits, begins and ends epochs, erases, and follows the ledger, which alone says who may do what. In
come signed requests (`http.py`) and the ledger's blocks; out go sealed grants, signed permits and orders, and entries
for the ledger. `asks.py` has every request, `authority.py` is the one door to them, `core.py` says how a decision is
made durable, `client.py` is the caller's side.
"""
