"""Trackers: the protocol, the in-memory one, discovery by name, fan-out and background delivery."""
