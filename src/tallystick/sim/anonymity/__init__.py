"""Who can tell a subscriber of a mesh from a forwarder, by what rule: a vectorised simulator of AnonPubSub (seed 001)
and its attackers. In come settings and seeds; out go guesses, and how good they are. `tally mesh attack` shows them,
and the figures of `experiments/anonpubsub` are drawn with them.

    graph.py     who is whose neighbour, and shortest paths from a publisher
    mesh.py      M_a, the mesh of a topic, with its cover nodes (probabilistic forwarding)
    games.py     the shell game
    scene.py     all of these drawn together; what an observer of all links sees of them
    measures.py  Eq. 4, Eq. 5 and the others
    observers.py, rewinding.py, insiders.py, rounds.py, traffic.py   the attackers; they are handed a view, never a role
    survey.py    all attackers on meshes of one setting, over several seeds

We say topic and link beat where the paper says attribute and heartbeat.
"""
