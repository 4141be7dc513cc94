"""Random numbers that have an address instead of a state."""

STREAM_VERSION = 1
