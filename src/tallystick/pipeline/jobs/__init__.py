"""Jobs: what the pipeline makes of topics, `tally pipeline run NAME`. A job is a function over DataFrames, usable from
a notebook, and a `run` that wires it to the tables of a `warehouse`; `registry` lists the jobs without loading one,
`run` is what each is handed. A topic comes in once (`ingest`); from there on tables come in and tables go out."""
