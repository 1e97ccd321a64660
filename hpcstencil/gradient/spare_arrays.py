"""Arrays that a sweep does not need any more, whose memory other fields take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import jax
import jax.numpy as jnp

from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields


@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _copied_into(room: Fields, fields: Fields) -> Fields:
    return jax.tree.map(jnp.copy, fields)


@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _filled_into(room: Fields, values: Mapping[str, float]) -> Fields:
    return {name: jnp.full_like(array, values[name]) for name, array in room.items()}


class SpareArrays:
    """Arrays that nobody needs any more, whose memory other fields take. New memory is slow, since it comes page by page.

    All have the shape of a field. With ``several`` devices in this process there are none.
    """

    def __init__(self, copied: Body, several: bool) -> None:
        self.copies, self.several = copied, several
        self.held: list[jax.Array] = []
        self.unused = 0  # the fewest arrays held since the last `trim`

    def add(self, fields: Fields) -> None:
        """Add fields that nobody needs any more."""
        self.held += () if self.several else fields.values()

    def taken(self, names: Collection[str]) -> Fields:
        """Remove and return arrays under these names; none if there are not enough."""
        found = {name: self.held.pop() for name in names} if len(names) <= len(self.held) else {}
        self.unused = min(self.unused, len(self.held))
        return found

    def trim(self) -> None:
        """Drop the arrays that nobody has taken since the last call."""
        del self.held[: self.unused]
        self.unused = len(self.held)

    def copied(self, fields: Fields) -> Fields:
        """Return copies of the fields, in memory that nobody needs any more if there is any."""
        room = self.taken(fields)
        return _copied_into(room, fields) if room else self.copies(fields)

    def with_any_values(self, names: Collection[str], like: jax.Array) -> Fields:
        """Return fields that are only written, by name, on the devices of the field ``like``."""
        return self.taken(names) or self.filled(dict.fromkeys(names, 0.0), like)

    def filled(self, values: Mapping[str, float], like: jax.Array) -> Fields:
        """Return fields with the same value in all cells, by name, on the devices of the field ``like``."""
        room = self.taken(values)
        return _filled_into(room, values) if room else {name: jnp.full_like(like, values[name]) for name in values}
