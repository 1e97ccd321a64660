"""The transpose of one time step, from the table of stages of its method.

With the stages y_i = Σ_j a_ij y_j + dt Σ_j b_ij f(t + c_j dt, y_j), i = 1 .. s, and ȳ_s the derivative of the objective with
respect to the result y_s, for j = s - 1 .. 0
  k̄_j = dt Σ_(i > j) b_ij ȳ_i,   ȳ_j = Σ_(i > j) a_ij ȳ_i + (∂f/∂u)ᵀ(y_j) k̄_j,
and each parameter p gets Σ_j (∂f/∂p)ᵀ(y_j) k̄_j. ȳ_0 belongs to the fields before the step. This is the chain rule, for any
method in Shu-Osher form (W. Hager, Numerische Mathematik 87 (2000) 247-282, for Butcher tables).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcstencil.numerics.integrators import Method


@dataclass(frozen=True)
class TransposedStage:
    """The weights with which later stages i enter stage ``number`` j, by field: the a_ij and the b_ij, as (i, weight).

    A field without ``slopes`` has k̄_j = 0.
    """

    number: int
    values: Mapping[str, tuple[tuple[int, float], ...]]
    slopes: Mapping[str, tuple[tuple[int, float], ...]]

    @property
    def evaluates(self) -> bool:
        """Whether (∂f/∂u)ᵀ is evaluated at y_j."""
        return any(self.slopes.values())


def transposed_stages(method: Method, groups: Mapping[str, int], fields: tuple[str, ...]) -> list[TransposedStage]:
    """The stages of the reverse step of a method, in the order in which they are taken.

    ``groups`` is the group of each field of a partitioned method, whose stages leave the other group as it is. The method
    must not be a multistep one.
    """
    assert not method.multistep
    result = []
    for j in reversed(range(len(method.stages))):
        values: dict[str, tuple[tuple[int, float], ...]] = {}
        slopes: dict[str, tuple[tuple[int, float], ...]] = {}
        for name in fields:
            a, b = [], []
            for i, stage in enumerate(method.stages, start=1):
                if stage.group is not None and groups[name] != stage.group:
                    a += [(i, 1.0)] if i == j + 1 else []
                else:
                    a += [(i, weight) for number, weight in stage.values if number == j]
                    b += [(i, weight) for number, weight in stage.slopes if number == j]
            values[name], slopes[name] = tuple(a), tuple(b)
        result.append(TransposedStage(j, values, slopes))
    return result
