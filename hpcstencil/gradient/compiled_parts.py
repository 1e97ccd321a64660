"""Compiled code and memory of reverse sweeps, which the members of an ensemble and the evaluations of a fit share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import jax
import jax.numpy as jnp

from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.unknowns import CellValues, NumberParameter
from hpcstencil.backends.backend import Injection, Reductions
from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.derivative_sums import reductions_of
from hpcstencil.gradient.spare_arrays import SpareArrays
from hpcstencil.gradient.stage_sums import StageSums
from hpcstencil.gradient.tape_memory import TapeMemory
from hpcstencil.simulation.simulation import ComposedSimulation

Kind = TypeVar("Kind", NumberParameter, CellValues)


@dataclass(frozen=True, eq=False)
class CompiledParts:
    """What reverse sweeps of the same trees share. It is made when it is first needed.

    The arguments are those of the first `ReverseSweep`, with the number of ``steps`` of its run, 0 if they follow the solution.
    Compiled code takes the values of parameters as arguments.
    """

    forward: ComposedSimulation
    adjoint: Adjoint
    backward: ComposedSimulation
    several: ComposedSimulation | None
    at_once: int
    injected: bool
    steps: int

    @cached_property
    def injections(self) -> Mapping[bool, Injection]:
        """What adds the derivatives with respect to samples while steps are reversed: one at a time (False), or several."""
        found = dict[bool, Injection]()
        for several, simulation in enumerate((self.backward, self.several)) if self.injected else ():
            if simulation is not None:
                assert simulation.steps.injection is not None
                found[bool(several)] = simulation.steps.injection(1 if self.adjoint.needs_states else self.steps)
        return found

    @cached_property
    def with_added(self) -> Body:
        """The function (fields, others) -> their sums, which overwrites the fields. There may be fewer others."""

        def added(fields: Fields, others: Fields) -> Fields:
            return {name: array + others[name] if name in others else array for name, array in fields.items()}

        return self.forward.device_grid.compiled(added, 0, (0,))

    @cached_property
    def copied(self) -> Body:
        """The function fields -> copies of them, which steps may overwrite."""
        copies = self.forward.device_grid.compiled(lambda fields: jax.tree.map(jnp.copy, fields), 0)
        return lambda fields: copies(fields) if fields else {}

    @cached_property
    def first_slopes(self) -> Body | None:
        """The slopes that a multistep method remembers at t = 0; None for other methods."""
        return self.forward.steps.slopes() if self.forward.problem.method.multistep else None

    @cached_property
    def spare(self) -> SpareArrays:
        """The memory of stored states and of other fields, which is kept from one sweep to the next."""
        return SpareArrays(self.copied, self.forward.device_grid.devices.several)

    @cached_property
    def tape(self) -> TapeMemory:
        """The memory of the tape, if the adjoint has one, which is kept like ``spare``."""
        return TapeMemory()

    @cached_property
    def number_reductions(self) -> tuple[list[NumberParameter], Reductions]:
        """The unknowns that are numbers, and the reductions of their gradients per cell, whose sums are the gradients."""
        return self._reductions_of(NumberParameter)

    @cached_property
    def array_reductions(self) -> tuple[list[CellValues], Reductions]:
        """The unknowns with a value per cell, and the reductions of their gradients."""
        return self._reductions_of(CellValues)

    def _reductions_of(self, kind: type[Kind]) -> tuple[list[Kind], Reductions]:
        unknowns = [one for one in self.adjoint.unknowns if isinstance(one, kind)]
        return unknowns, reductions_of(self.backward, [one.gradient_field for one in unknowns])

    @cached_property
    def sum_of_array(self) -> Reductions:
        """The sum of an array that is laid out like a field."""
        return reductions_of(self.backward, [self.adjoint.any_field])

    @cached_property
    def stage_sums(self) -> Mapping[bool, StageSums]:
        """What steps that are reversed one at a time (False), or several, add to the derivatives with respect to time series;
        empty if there are none among the unknowns."""
        if not self.adjoint.stage_fields():
            return {}
        found = {False: StageSums(self.adjoint, self.backward)}
        return found if self.several is None else {**found, True: StageSums(self.adjoint, self.several, self.at_once)}
