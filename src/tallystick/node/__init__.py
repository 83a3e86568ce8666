"""What runs as a process: configuration and wiring of a node (log carrier, ledger, HTTP) and of an authority beside
it. Folders and settings come in; a serving process goes out. Nothing is decided here."""
