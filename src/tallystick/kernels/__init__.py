"""The compiled loops (numba), apart from what a stranger reads first: each is the fast twin of plain Python that stands
elsewhere, is held to it by tests, and is done without where numba is missing or fails its self-test. `jit.py` compiles
and caches, `demand.py` loads an engine when there is enough to do, `memory.py` reads and writes by address."""
