"""An emulator of the Cloud TPU API on loopback, with real SSH servers as its workers."""
