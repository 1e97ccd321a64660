"""The state of a run as a checkpoint stores it: any pytree, so that no part of it can be forgotten.

Leaves over the grid are stored as global arrays, all others as scalars, each under the path of its place in the tree:
"clock/step", or for a field the field's own name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax

from hpcstencil.numerics.schedule import Clock
from hpcstencil.validation.errors import InputError

jax.tree_util.register_dataclass(Clock, data_fields=[entry.name for entry in fields(Clock)], meta_fields=[])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything that the next step depends on, beside the input: what an integrator remembers belongs here too, and the
    clocks of ``members`` of an ensemble that take steps of their own.

    In a template the fields are ``None`` or any other stand-ins.
    """

    clock: Clock
    fields: Mapping[str, Any]
    members: tuple[Clock, ...] = ()


def split(state: State, gather: Callable[[Any], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arrays, scalars) by path; ``gather`` makes this process's block of a leaf over the grid."""
    arrays, scalars = {}, {}
    for name, leaf in _named(state):
        if isinstance(leaf, jax.Array):
            arrays[name] = gather(leaf)
        else:
            scalars[name] = leaf
    return arrays, scalars


def join(template: State, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> State:
    """The state of the template's structure with the leaves of these paths.

    Raises InputError where one is missing: the checkpoint comes from a run that remembered less.
    """
    found = {**arrays, **scalars}
    missing = [name for name, _ in _named(template) if name not in found]
    if missing:
        raise InputError(f"'{missing[0]}' is not in the checkpoint; it was written by a run of another kind")
    structure = jax.tree_util.tree_structure(template)
    return jax.tree_util.tree_unflatten(structure, [found[name] for name, _ in _named(template)])


def _named(state: State) -> list[tuple[str, Any]]:
    """Every leaf with its path; those of the fields begin at the field's name."""
    named = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        parts = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path]
        named.append(("/".join(parts[1:] if parts[0] == "fields" else parts), leaf))
    return named
