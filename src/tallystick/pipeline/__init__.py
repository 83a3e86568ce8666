"""Spark: topics come in, tables go out, and frames onto topics. `session` prepares a Spark session, `source` is the
data source `tally`, batch and streaming, `sink` its other direction. The driver plans (`plan`, `edges`, `heads`,
`committed`): it proves anchors and headers, joins lanes and resolves commit parcels. The executors read (`task`):
they fetch, check, open and project (`columns`). Both speak to node and authority as the identity in the folder that the
query names (`access`), and between them travel plain values. On a cluster the folder stays with the driver, which lends
its tasks the query's keys, or what seals (`loan`), over a channel that was checked (`session`). What did not hold
becomes a row of a table of its own (`quarantine`), or an error that Spark can show (`explain`). `daemon` is the process
from which Spark forks its Python workers."""

from tallystick.pipeline.session import configure, register

__all__ = ["configure", "register"]
