"""The adjoints of the members of an ensemble, which share all trees, and the unknowns in which the members differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.tape import with_tape
from hpcstencil.adjoint.unknowns import InitialValues, SeriesParameter, Unknown
from hpcstencil.config.paths import objective_files
from hpcstencil.io.array_file import ArrayInMemory, ArrayOfMember
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Parameter, walk

Held = Mapping[str, ArrayInMemory | ArrayOfMember]


def single_runs(problem: Problem) -> tuple[Problem, ...]:
    """The problems of the members of an ensemble, in order; otherwise the problem itself."""
    return problem.members or (problem,)


def of_member(first: Adjoint, member: Problem, expressed: Iterable[str]) -> Adjoint:
    """The adjoint of another member of an ensemble than the ``first``.

    ``expressed`` are as in `adjoint_of`. The trees are those of the first, except where they follow from the initial
    expressions. Raises the errors of `adjoint_of`.
    """
    names = set(expressed)
    same = all(member.initial.get(name) == first.forward.initial.get(name) for name in names)
    if same or all(isinstance(one, InitialValues | SeriesParameter) for one in first.unknowns):
        return replace(first, forward=member, problem=replace(first.problem, parameters=member.parameters))
    made = adjoint_of(member, names)
    if first.tape is None:
        return made
    taped = with_tape(made)  # the trees of steps are those of the first
    assert taped is not None
    return taped


def differing(problem: Problem, unknowns: Iterable[Unknown], assigned: Mapping[str, bool]) -> frozenset[str]:
    """The entries of gradient.of in which the members of an ensemble differ, which have a gradient per member.

    These are listed in [ensemble], or are initial values whose expressions differ or use something listed there. ``assigned``
    has the fields whose initial values come from a Python program, and whether it gave each member its own.
    """
    ensemble = problem.config.ensemble
    listed = {Parameter(key.removeprefix("equation.")) for key in ensemble if key.startswith("equation.")}

    def initial(name: str) -> bool:
        if name in assigned:
            return assigned[name]
        trees = {member.initial[name] for member in problem.members if name in member.initial}
        return len(trees) > 1 or any(part in listed for tree in trees for part in walk(tree))

    own = {one.key for one in unknowns if isinstance(one, InitialValues) and problem.members and initial(one.name)}
    return frozenset(own | {one.key for one in unknowns if one.key in ensemble})


def per_member(problem: Problem, unknowns: Iterable[Unknown], own: Collection[str]) -> tuple[Unknown, ...]:
    """The unknowns, with those in which the members differ, ``own``, once per member."""
    return tuple(one for one in unknowns for _ in range(problem.copies if one.key in own else 1))


def data_of_member(problem: Problem, held: Mapping[str, ArrayInMemory], member: int) -> Held:
    """The data of the objective of one member of an ensemble, by dotted key.

    ``held`` are those from Python, by key. For a single run they are returned as they are.
    """
    if not problem.members:
        return held
    files, count = objective_files(problem.config), len(problem.members)
    return {key: ArrayOfMember(held.get(key, file), member, count) for key, file in files.items()}
