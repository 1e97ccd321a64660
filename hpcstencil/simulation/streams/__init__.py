"""Streams: what a run writes, and when. `stream` is the protocol that the event loop knows; each module is one kind."""
