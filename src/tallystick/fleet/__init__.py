"""A fleet without Spark: vehicles and city sensors to feed the backbone, and the names of their signals.

Numbers and a seed come in, or files that others recorded; out go Arrow record batches of the schemas in `schemas`, in
order of time, and apart from them the ground truth that the rows must agree with. `routes`, `motion` and `engine` make
a drive, `vehicles` turns it into telemetry, `can` into frames of `tallystick.dbc`, `city` is the hospital and the home
provider of BPS 5.1, `replay` reads recorded files and `pace` lets any of them run at the speed of a clock. Nothing here
publishes by itself: batches are handed to whatever takes batches.
"""
