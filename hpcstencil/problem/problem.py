"""The complete initial value problem of an input file, with what it needs on a grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcstencil.config.settings import Config
from hpcstencil.equations import Equation, Limited
from hpcstencil.io.array_file import ArrayContents, ArrayFile
from hpcstencil.numerics.finite_differences import is_large
from hpcstencil.numerics.integrators import ERROR, NEW, Method
from hpcstencil.numerics.schedule import Schedule
from hpcstencil.problem.receivers import Receivers
from hpcstencil.problem.solid_mask import SOLID, Mask
from hpcstencil.symbolic.boundary_kinds import Face
from hpcstencil.symbolic.expressions import Constant, Field, Node, Pointwise, Reduction, Series, node, walk
from hpcstencil.symbolic.staggering import Layout, Positions
from hpcstencil.symbolic.stencil_reach import Discretization, Needs


@dataclass(frozen=True)
class Problem:
    """An initial value problem, ready to be discretized.

    ``trees`` are the time derivatives per field, and ``initial`` the initial expressions of the fields that have one.
    ``faces`` are the boundary conditions of non-periodic axes per (field or inner result, axis, side). ``diagnostics``
    are trees over reductions. ``parameters`` are the numbers passed to the compiled code; a parameter in which the
    ``members`` of an ensemble differ is an array. Parameters given as expressions are part of the trees. ``symbols``
    has both kinds as nodes. ``groups`` assigns the fields to the groups of a partitioned ``method``. ``memory`` names
    the fields added by absorbing layers, a multistep method, a mask or parameters read from files. ``given`` maps the
    fields of such parameters to their files, and ``contents`` has what these files, and that of a mask, hold, by key of
    the input. ``damping`` is the fastest damping rate of the
    layers. ``apart`` are the parts of the time derivatives that a multistep method treats separately. ``measured`` are
    the fields, and expressions of them, that the stable step depends on. ``positions`` are those of fields that do not
    live at cell centres. ``mask`` has the solid cells. ``receivers`` are those of each table of [probes]. ``source`` is the
    text of the equation's Python file. ``derived`` are the expressions of streams, by the stream's name and their own.
    """

    config: Config
    equation: Equation
    fields: tuple[str, ...]
    trees: Mapping[str, Node]
    parameters: Mapping[str, Any]
    symbols: Mapping[str, Node]
    bounds: Mapping[str, float]
    initial: Mapping[str, Node]
    faces: Mapping[tuple[Node, int, int], Face]
    diagnostics: Mapping[str, Node]
    method: Method
    groups: Mapping[str, int]
    discretization: Discretization
    memory: tuple[str, ...] = ()
    given: Mapping[str, ArrayFile] = field(default_factory=dict)
    contents: Mapping[str, ArrayContents] = field(default_factory=dict)
    damping: float = 0.0
    apart: Mapping[str, Node] = field(default_factory=dict)
    measured: Mapping[str, Node] = field(default_factory=dict)
    positions: Positions = field(default_factory=dict)
    members: tuple[Problem, ...] = ()
    mask: Mask | None = None
    receivers: Mapping[str, Receivers] = field(default_factory=dict)
    source: str = ""
    derived: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The positions of the fields in files."""
        config = self.config
        return Layout(config.grid, self.positions, config.boundary.periodic, config.ensemble)

    @property
    def copies(self) -> int:
        """Number of runs side by side: the members of an ensemble, else 1."""
        return max(1, len(self.members))

    @property
    def own_steps(self) -> bool:
        """Whether each member of an ensemble takes its own steps, as long as its own solution allows."""
        return bool(self.members) and self.config.time.dt is None

    @property
    def cells(self) -> int:
        """Number of cells of all runs side by side."""
        return self.copies * self.config.grid.cells

    @property
    def cells_per_step(self) -> int:
        """Number of cells that one step advances. If members take their own steps, that is one member's cells."""
        return self.config.grid.cells if self.own_steps else self.cells

    @property
    def shown(self) -> tuple[str, ...]:
        """The fields of the equation, without the memories of absorbing layers."""
        return tuple(name for name in self.fields if name not in self.memory)

    @property
    def constant(self) -> tuple[str, ...]:
        """The fields that never change: those of parameters read from files, and a mask."""
        return tuple(name for name in self.fields if name == SOLID or name in self.given)

    @property
    def changing(self) -> tuple[str, ...]:
        """The fields that change in a step, which checkpoints hold."""
        return tuple(name for name in self.fields if name not in self.constant)

    @property
    def step_follows_solution(self) -> bool:
        """Whether the step size is determined during the run."""
        return self.config.time.dt is None and (self.config.time.tolerance is not None or self.rates_follow_solution)

    @property
    def rates_follow_solution(self) -> bool:
        """Whether the stable step depends on the fields."""
        return isinstance(self.equation, Limited) and self.equation.solution_dependent

    @property
    def radius(self) -> tuple[int, ...]:
        """Ghost cells per axis that one evaluation of the right-hand side consumes."""
        return self.discretization.radius(self.differentiated())

    def needs(self, trees: Iterable[Node]) -> Needs:
        """Ghost cells that the operators in the trees need of their operands. Rates and diagnostics are treated
        separately, so that a new diagnostic does not change the code that computes the steps."""
        return self.discretization.needs(trees)

    def differentiated(self) -> list[Node]:
        """All trees that are evaluated with ghost cells."""
        return [*self.rates(), *self.reduced(), *self.in_streams()]

    def rates(self) -> list[Node]:
        """All trees that are parts of time derivatives."""
        return [*self.trees.values(), *self.apart.values()]

    def constants(self) -> tuple[float, ...]:
        """All numbers in the expressions evaluated on the grid, including the weights of stencils whose terms are unrolled."""
        values = (value for face in self.faces.values() for value in face.values)
        trees = [*self.differentiated(), *values]
        parts = [part for tree in trees for part in walk(tree)]
        numbers = [part.value for part in parts if isinstance(part, Constant)]
        numbers += [1.0 / part.dt for part in parts if isinstance(part, Series)]
        for part in parts:
            stencils = [stencil for stencil in self.discretization.stencils(part) if not is_large(stencil)]
            numbers += [w for stencil in stencils for w in stencil.weights]
        return tuple(dict.fromkeys(numbers))

    def reduced(self) -> tuple[Node, ...]:
        """Operands of all reductions in the diagnostics."""
        return tuple(
            dict.fromkeys(
                part.operand for tree in self.diagnostics.values() for part in walk(tree) if isinstance(part, Reduction)
            )
        )

    def in_streams(self) -> tuple[Node, ...]:
        """All expressions of streams."""
        return tuple(dict.fromkeys(tree for each in self.derived.values() for tree in each.values()))

    def errors(self) -> dict[str, Node]:
        """The squared relative error (e / (tol + tol max(|u|, |new u|)))² of each field that changes. It uses the
        fields u, "new u" after the step and "error u" for the estimated error e. Empty without a tolerance."""
        tolerance = self.config.time.tolerance
        if tolerance is None:
            return {}
        weighed = {}
        for name in self.trees:
            sizes = tuple(Pointwise("abs", (Field(kind + name),)) for kind in ("", NEW))
            ratio = Field(ERROR + name) / (node(tolerance) + node(tolerance) * Pointwise("maximum", sizes))
            weighed[name] = ratio * ratio
        return weighed

    def schedule(self) -> Schedule:
        """The times of steps, outputs, diagnostics and checkpoints."""
        config = self.config
        return Schedule(
            end=config.time.end,
            fixed_dt=config.time.dt,
            output_time=config.output.every,
            output_steps=config.output.every_steps,
            diagnostic_steps=config.diagnostics.every_steps,
            checkpoint_steps=config.checkpoint.every_steps,
        )
