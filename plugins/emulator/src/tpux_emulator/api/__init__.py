"""The HTTP surface: the messages and methods of the TPU API, and of the few others that its clients call."""
