"""The demo: the whole story on real processes, and every attack of the threat model acted out.

`show` sets the stage (an instance as `tally up` runs it, two tenants, a fleet and sensors), lets honest people work,
performs one scene after the other and asks Spark for its own findings. A scene is an attack that really acts, through
requests, bytes and edits of files; its outcome is observed, and one that cannot be observed counts as failed. Families
of scenes: `permits`, `policies`, `publishing`, `operator`. What the attackers work with (`hand`, `forgery`, `disk`,
`impostor`) the tests of the scenarios use as well. Out come outcomes and a table; `tally demo` prints it.
"""
