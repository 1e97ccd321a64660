"""The state of a run, and its form in a checkpoint. It may be any pytree, so no part of it can be forgotten.

Leaves over the grid are stored as global arrays and all others as scalars. Each is stored under its path in the tree,
such as "clock/step"; a field is stored under its own name.
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

    ``fields`` map names to arrays as in `backends.backend`: this process's cells without ghost cells, in the run's
    dtype; they include the memories of layers and of a multistep method. ``members`` are the clocks of ensemble members
    that take their own steps, else empty. In a template the fields are ``None`` or any other placeholders.
    """

    clock: Clock
    fields: Mapping[str, Any]
    members: tuple[Clock, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """The field called ``name``."""
        return self.fields[name]


def split(state: State, gather: Callable[[jax.Array], np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arrays, scalars) of a state, each by path. ``gather`` turns a field into this process's block: local, without
    ghost cells."""
    arrays, scalars = {}, {}
    for name, leaf in _named(state):
        if isinstance(leaf, jax.Array):
            arrays[name] = gather(leaf)
        else:
            scalars[name] = leaf
    return arrays, scalars


def scalars_of(state: State) -> dict[str, Any]:
    """The scalars of a state by path: everything except its fields."""
    return dict(_named(replace(state, fields={})))


def join(template: State, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> State:
    """A state with the structure of ``template`` and the leaves given by path, as `split` names them.

    Raises InputError if one is missing, as in a checkpoint of a run with a smaller state.
    """
    found = {**arrays, **scalars}
    missing = [name for name, _ in _named(template) if name not in found]
    if missing:
        raise InputError(
            f"the checkpoint: expected {missing[0]}, which is missing; a run of another kind or version wrote it, so begin anew"
        )
    structure = jax.tree_util.tree_structure(template)
    return jax.tree_util.tree_unflatten(structure, [found[name] for name, _ in _named(template)])


def _named(state: State) -> list[tuple[str, Any]]:
    """Every leaf with its path; the path of a field starts with the field's name."""
    named = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        parts = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path]
        named.append(("/".join(parts[1:] if parts[0] == "fields" else parts), leaf))
    return named
