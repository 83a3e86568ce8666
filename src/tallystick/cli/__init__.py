"""The command line, one file per command; nothing imports it.

`main.py` holds the list of commands and loads only the one that is called; `output.py` is how every command
speaks: results on stdout, the rest on stderr, errors as an `error:` line and, where there is advice, a
`hint:` line. Arguments come in, calls to `client/`, `authority/`, `ledger/` and `node/` go out; no rule
lives here.
"""
