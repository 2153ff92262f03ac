"""An emulator of the Cloud TPU API on loopback, with real SSH servers as its workers.

Layers, top first: `cli` and `testing`; `emulator`; `process`; `client` and `server`; `api` (requests and answers) and
`workers` (machines); `cloud` (state and state machines); `messages`, `protojson`, `errors`, `clock`,
`paths`, `log`. A module imports only from lower layers.
"""
