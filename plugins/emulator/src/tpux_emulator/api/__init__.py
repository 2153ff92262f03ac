"""The HTTP API: methods of the TPU API and of Compute Engine, and the emulator's own control routes."""
