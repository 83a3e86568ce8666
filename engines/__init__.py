"""How the scale engines are fetched and started here: Kafka from Maven, CometBFT from Go's module proxy; and programs
of others that judge ours (litewitness, p4runtime-shell, Helm). In comes a pinned version; out come files in the
user's cache (`cache`) and processes on loopback. Nothing here is needed by an operator who runs engines of their own:
the product only ever sees their URLs."""
