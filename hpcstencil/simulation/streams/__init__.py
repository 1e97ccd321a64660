"""Streams: everything that a run writes, and when. `stream` defines their interface; each other module is one kind."""
