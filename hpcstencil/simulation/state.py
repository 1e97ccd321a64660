"""The state of a run, and its form in a checkpoint.

The state may be any pytree, and a checkpoint stores every leaf, so no part can be forgotten. Leaves over the grid are stored
as global arrays, all others as scalars. Each is named by its path in the tree, such as "clock/step"; fields keep their own
names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np

from hpcstencil.numerics.schedule import Clock
from hpcstencil.validation.errors import InputError

jax.tree_util.register_dataclass(Clock, data_fields=[entry.name for entry in fields(Clock)], meta_fields=[])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything besides the input that the next step depends on.

    ``fields`` map names to arrays as in `backends.backend`: this process's cells without ghost cells, in the run's dtype.
    They include the memory variables of absorbing layers and multistep methods. ``members`` are the clocks of ensemble
    members that take their own steps; otherwise it is empty. In a template, fields may be None or any other placeholder.
    """

    clock: Clock
    fields: Mapping[str, Any]
    members: tuple[Clock, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """Return the field called ``name``."""
        return self.fields[name]


def split(state: State, gather: Callable[[jax.Array], np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a state into (arrays, scalars), each by path.

    ``gather`` converts a field to this process's block: local, without ghost cells.
    """
    arrays, scalars = {}, {}
    for name, leaf in _named(state):
        if isinstance(leaf, jax.Array):
            arrays[name] = gather(leaf)
        else:
            scalars[name] = leaf
    return arrays, scalars


def scalars_of(state: State) -> dict[str, Any]:
    """Return the scalars of a state by path: everything except its fields."""
    return dict(_named(replace(state, fields={})))


def join(template: State, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> State:
    """Build a state with the structure of ``template`` from leaves by path: the inverse of `split`.

    Raises InputError if a leaf is missing, as in a checkpoint of a run with a smaller state.
    """
    found = {**arrays, **scalars}
    missing = [name for name, _ in _named(template) if name not in found]
    if missing:
        raise InputError(
            f"the checkpoint: expected {missing[0]}, which is missing; a run of another kind or version wrote it; start again"
        )
    structure = jax.tree_util.tree_structure(template)
    return jax.tree_util.tree_unflatten(structure, [found[name] for name, _ in _named(template)])


def _named(state: State) -> list[tuple[str, Any]]:
    """Return (path, leaf) for every leaf; the path of a field is the field's name."""
    named = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        parts = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path]
        named.append(("/".join(parts[1:] if parts[0] == "fields" else parts), leaf))
    return named
