"""ABCI 2.0, the socket protocol by which CometBFT talks to its application: requests of a node come in over four
connections, an `Application` answers them, responses go out. Messages are our own descriptions of CometBFT's protocol
buffers (`messages`, `protobuf`), so neither stubs nor Go are needed to run; `server` serves, `supervisor` keeps node
and application going as a pair. Nothing here knows of ledgers, and nothing but the error family is imported."""
