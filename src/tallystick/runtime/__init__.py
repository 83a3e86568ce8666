"""The edge of the world: clock, entropy, disk, HTTP, links, and seeded stand-ins for each.

Protocol code above this folder takes time, random bytes and received messages as arguments and returns values
or effects; the drivers here read the clock, draw the bytes, open the sockets and files and carry the effects
out. In come addresses, keys and pure protocol objects; out go bytes on wires and disks, and errors of our own
family. Every real part has a seeded twin (`ManualClock`, `SeededEntropy`, `SeededDisk`, `Network`) that
replays exactly.
"""
