"""The complete initial value problem of an input: equations, boundary conditions, initial state, integrator, stencils."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hpcstencil.config.settings import Config
from hpcstencil.equations import Equation, SupportsCfl
from hpcstencil.io.array_file import ArrayContents, ArrayFile, ArrayInMemory, ArrayOfMember
from hpcstencil.numerics.finite_differences import is_large
from hpcstencil.numerics.integrators import ERROR, MEMORY, NEW, Method
from hpcstencil.numerics.schedule import Schedule
from hpcstencil.numerics.topology import Range
from hpcstencil.problem.linear_damping import damped
from hpcstencil.problem.misfit import Misfit, observed, read_on_grid
from hpcstencil.problem.parameter_files import Blocks
from hpcstencil.problem.receivers import PROBED, Receivers
from hpcstencil.problem.solid_mask import Mask
from hpcstencil.symbolic.boundary_kinds import Face
from hpcstencil.symbolic.expressions import Constant, Convolution, Field, Node, Pointwise, Reduction, Series, node, walk
from hpcstencil.symbolic.staggering import Layout, Positions
from hpcstencil.symbolic.stencil_reach import Discretization, Needs

SHORT_CALL = 2  # most steps of a short call


@dataclass(frozen=True)
class Problem:
    """An initial value problem on a grid, ready to be compiled by a backend.

    It consists of trees and numbers, is the same on all processes, and holds no arrays over the grid except those in
    ``held``.

    ``fields``          names of all arrays of the state, in order: the fields of the equation, then those in ``memory``
    ``memory``          fields added for absorbing layers, a multistep method, a mask or parameters given as arrays
    ``begin_at_zero``   fields in ``memory`` that are 0 in all cells at t = 0: those of absorbing layers. Empty if the state
                        may come from a run with other layers
    ``trees``           time derivative of each field that the method integrates
    ``multistep_damping`` parts of time derivatives that a multistep method treats separately, by field
    ``parts``           time derivatives that the method evaluates at some of its stage values instead of `slopes`, by field:
                        parts of them, by the number of the stage value
    ``parameters``      numbers passed to compiled code at run time, by name: a float, or an array of shape (members,) if
                        the members of an ensemble differ in it; and the samples of time series in gradient.of, float64 of
                        shape (samples,). Parameters given as expressions and other time series are part of the trees
    ``symbols``         every parameter as a node, by name: numbers, expressions, files and time series
    ``bounds``          largest magnitude of every parameter over the grid, time and all members
    ``initial``         initial expressions, for the fields that have one
    ``faces``           boundary condition on each face of non-periodic axes, by (operand, axis, side). An operand is a
                        field, or the result of an operator with a condition of its own
    ``diagnostics``     trees of reductions, by name
    ``groups``          group of each field, as `Stage` numbers them, if ``method`` is partitioned, else empty
    ``damped``          rate of the linear damping that ``method`` takes implicitly, as a tree in 1/time, by field
    ``given``           source (a file, or an array from Python) of each field that holds a parameter, by field
    ``contents``        summary of each array of a parameter or of the mask, by dotted key
    ``held``            arrays from Python, by dotted key, while the initial state is built. Arrays of initial values
                        have the dtype of the run, and the member axis of an ensemble last
    ``damping``         fastest damping rate of the absorbing layers, in 1/time
    ``measured``        fields, and trees of fields, on whose largest magnitudes the stable step depends, by name
    ``positions``       positions of the fields, and of the objective's data, that do not live at cell centres
    ``members``         the problem of each member of an ensemble, else empty
    ``mask``            the solid cells, or None
    ``receivers``       the receivers of each table of [probes], by name
    ``derived``         expressions of streams, by dotted key of their table, then by name; `probed`, by the key PROBED; and
                        those of `Adjoint` and `Tangent`
    ``objective``       the objective of [objective], a tree of reductions and of the sums in ``misfit``, by its name; empty
                        if there is none
    ``misfit``          the sums over receivers in the objective, or None
    ``injected``        the fields to single cells of which native code can add values while it steps
    ``replayed``        further fields that trees read in their own cell; native code is given arrays of them for each step
    ``replayed_in_half``  whether these arrays are in half precision (`tape_memory.half_of`)
    ``source``          text of the Python file of the equation, "" if it has none
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
    damped: Mapping[str, Node] = field(default_factory=dict)
    memory: tuple[str, ...] = ()
    begin_at_zero: tuple[str, ...] = ()
    given: Mapping[str, ArrayFile | ArrayInMemory] = field(default_factory=dict)
    contents: Mapping[str, ArrayContents] = field(default_factory=dict)
    held: Mapping[str, Blocks] = field(default_factory=dict)
    damping: float = 0.0
    multistep_damping: Mapping[str, Node] = field(default_factory=dict)
    parts: Mapping[int, Mapping[str, Node]] = field(default_factory=dict)
    measured: Mapping[str, Node] = field(default_factory=dict)
    positions: Positions = field(default_factory=dict)
    members: tuple[Problem, ...] = ()
    mask: Mask | None = None
    receivers: Mapping[str, Receivers] = field(default_factory=dict)
    source: str = ""
    derived: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)
    objective: Mapping[str, Node] = field(default_factory=dict)
    misfit: Misfit | None = None
    injected: tuple[str, ...] = ()
    replayed: tuple[str, ...] = ()
    replayed_in_half: bool = False

    @property
    def summed_receivers(self) -> dict[str, Receivers]:
        """The receivers that the objective sums over, by table of [probes]."""
        return {} if self.misfit is None else {table: self.receivers[table] for table in self.misfit.tables}

    @property
    def adds_every(self) -> int | None:
        """The number of steps between two states that add to the objective; None if only the last state does."""
        summed = self.summed_receivers.values()
        return math.gcd(*(each.every for each in summed)) if summed else self.config.objective.every_steps

    def observed(
        self, held: Mapping[str, ArrayInMemory | ArrayOfMember], step_times: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Read the data of ``misfit``, see `misfit.observed`; empty without one. ``step_times`` are the times before the first
        step and after each step of the run."""
        found = dict[str, np.ndarray]()
        for table, receivers in self.summed_receivers.items():
            assert self.misfit is not None
            times, dt = step_times[:: receivers.every], float(step_times[1] - step_times[0])
            found |= observed(self.config, self.misfit, table, times, dt, receivers.places, held)
        return found

    def data_on_grid(
        self, ranges: Sequence[Range], held: Mapping[str, ArrayInMemory | ArrayOfMember]
    ) -> dict[str, np.ndarray]:
        """Read a block of the objective's data that are not those of ``misfit``, see `misfit.read_on_grid`."""
        return read_on_grid(self.config, self.misfit, replace(self.layout, positions=self.positions), ranges, held)

    @property
    def listed(self) -> frozenset[str]:
        """The parameters in which the members of an ensemble differ."""
        keys = (key.partition(".") for key in self.config.ensemble)
        return frozenset(name for table, _, name in keys if table == "equation") & self.parameters.keys()

    @property
    def sampled(self) -> dict[str, int]:
        """The time series whose samples are passed to compiled code at run time, with their lengths."""
        return {
            name: len(value) for name, value in self.parameters.items() if np.ndim(value) and name not in self.listed
        }

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the parameters that are numbers."""
        sampled = self.sampled
        return tuple(name for name in self.parameters if name not in sampled)

    @property
    def layout(self) -> Layout:
        """The layout of the fields in files, given by the grid, the positions of the fields, and the ensemble."""
        config, positions = self.config, {name: self.positions[name] for name in self.fields if name in self.positions}
        return Layout(config.grid, positions, config.boundary.periodic, config.ensemble)

    @property
    def copies(self) -> int:
        """Number of simulations that advance together: the number of members of an ensemble, else 1."""
        return max(1, len(self.members))

    @property
    def own_steps(self) -> bool:
        """Whether the members of an ensemble have individual step sizes, so that their times may differ."""
        return bool(self.members) and self.config.time.dt is None

    @property
    def cells(self) -> int:
        """Number of cells of the global grid, times the number of ensemble members."""
        return self.copies * self.config.grid.cells

    @property
    def cells_per_step(self) -> int:
        """Number of cells that one step advances: the cells of all members, or of one member if each has its own step
        size."""
        return self.config.grid.cells if self.own_steps else self.cells

    @property
    def shown(self) -> tuple[str, ...]:
        """The fields of the equation, which the output can hold: all fields except those in ``memory``."""
        return tuple(name for name in self.fields if name not in self.memory)

    @property
    def constant(self) -> tuple[str, ...]:
        """The fields that no step changes: parameters given as arrays, directions of these, and the solid cells."""
        return tuple(name for name in self.fields if name not in self.trees and not name.endswith(MEMORY))

    @property
    def changing(self) -> tuple[str, ...]:
        """The fields that change in a step, and are stored in checkpoints."""
        return tuple(name for name in self.fields if name not in self.constant)

    @property
    def step_follows_solution(self) -> bool:
        """Whether the step size depends on the solution, by a tolerance or by the rates of the equation."""
        return self.config.time.dt is None and (self.config.time.tolerance is not None or self.rates_follow_solution)

    @property
    def calls_are_short(self) -> bool:
        """Whether compiled calls take a step or two, after which the solution determines the step size again."""
        time = self.config.time
        follows = self.step_follows_solution and time.tolerance is None and not self.own_steps
        return follows and time.dt_every <= SHORT_CALL

    @cached_property
    def rates_follow_solution(self) -> bool:
        """Whether the equation has rates, and they depend on the fields."""
        return isinstance(self.equation, SupportsCfl) and self.equation.solution_dependent

    @property
    def has_common_steps(self) -> bool:
        """Whether no step may be rejected, and all members of an ensemble take the same steps."""
        time = self.config.time
        return time.tolerance is None and (not self.members or time.dt is not None)

    @property
    def by_fft(self) -> str:
        """The name of a stencil in the time derivatives that is computed by FFT; "" if there is none."""
        parts = (part for tree in self.right_hand_sides() for part in walk(tree))
        return next((part.name for part in parts if isinstance(part, Convolution) and part.stencil.by_fft), "")

    @property
    def radius(self) -> tuple[int, ...]:
        """Number of ghost cells per axis, on either side, that one evaluation of the right-hand side, the diagnostics or
        derived quantities needs."""
        return self.discretization.radius(self.differentiated())

    def needs(self, trees: Iterable[Node]) -> Needs:
        """The ghost cells that the operators in the trees need from their operands (`stencil_reach.Needs`).

        Callers ask for time derivatives and diagnostics separately, so that a new diagnostic does not change the code
        of the steps.
        """
        return self.discretization.needs(trees)

    def differentiated(self) -> list[Node]:
        """All trees that may contain operators: `right_hand_sides`, `reduced` and `derived_trees`."""
        return [*self.right_hand_sides(), *self.reduced(), *self.derived_trees()]

    @cached_property
    def slopes(self) -> Mapping[str, Node]:
        """The trees that the stages of the method evaluate, by field: ``trees``, of `damped` fields as the method needs it."""
        if not self.damped:
            return self.trees
        weights = {name: self.method.damping[self.groups[name] % 2] for name in self.damped}
        return {
            name: damped(tree, self.damped[name], weights[name]) if name in self.damped else tree
            for name, tree in self.trees.items()
        }

    def slopes_at(self, number: int) -> Mapping[str, Node]:
        """The trees that the method evaluates at the stage value with this number, by field."""
        return self.parts.get(number, self.multistep_damping if number and self.multistep_damping else self.slopes)

    @property
    def slopes_elsewhere(self) -> dict[int, Mapping[str, Node]]:
        """The trees of `slopes_at` for those stage values, by number, where they are not `slopes`."""
        found = {number: self.slopes_at(number) for number in range(len(self.method.stages) + 1)}
        return {number: trees for number, trees in found.items() if trees is not self.slopes}

    def right_hand_sides(self) -> list[Node]:
        """The trees of all time derivatives: those in `slopes`, in ``multistep_damping`` and in ``parts``."""
        parts = {id(part): part for part in self.parts.values()}.values()  # several stages may share a part
        return [
            *self.slopes.values(),
            *self.multistep_damping.values(),
            *(tree for part in parts for tree in part.values()),
        ]

    def constants(self) -> tuple[float, ...]:
        """The distinct numbers in all trees that are evaluated on the grid, including boundary values.

        They are constants, 1/dt of time series, and the weights of stencils that are summed without a loop.
        """
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
        """The operands of all reductions in the diagnostics, each once."""
        return tuple(
            dict.fromkeys(
                part.operand for tree in self.diagnostics.values() for part in walk(tree) if isinstance(part, Reduction)
            )
        )

    @property
    def probed(self) -> Mapping[str, Node]:
        """The expressions that receivers record, by `Receivers.field`."""
        return self.derived.get(PROBED, {})

    def derived_trees(self) -> tuple[Node, ...]:
        """All trees in ``derived``, each once."""
        return tuple(dict.fromkeys(tree for each in self.derived.values() for tree in each.values()))

    def errors(self) -> dict[str, Node]:
        """The squared error ratio (e / (tol + tol max(|u|, |new u|)))² of each integrated field, as a tree by field.

        Its operands are the field u, "new u" after the step, and "error u" for the estimated error e. Empty without a
        tolerance.
        """
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
        """The schedule of a run from t = 0: its steps, and when output, diagnostics and checkpoints are due."""
        config = self.config
        return Schedule(
            end=config.time.end,
            fixed_dt=config.time.dt,
            output_time=config.output.every,
            output_steps=config.output.every_steps,
            diagnostic_steps=config.diagnostics.every_steps,
            checkpoint_steps=config.checkpoint.every_steps,
        )
