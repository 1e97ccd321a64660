"""The reverse of time steps, as one step of another method: its stages are those of the steps, then those of their transposes.

With the stages y_i = Σ_j a_ij y_j + dt Σ_j b_ij f(t + c_j dt, y_j), i = 1 .. s, and ȳ_s the derivative of the objective with
respect to the result y_s, for j = s - 1 .. 0
  k̄_j = dt Σ_(i > j) b_ij ȳ_i,   ȳ_j = Σ_(i > j) a_ij ȳ_i + (∂f/∂u)ᵀ(y_j) k̄_j,
and each parameter p gets Σ_j (∂f/∂p)ᵀ(y_j) k̄_j. ȳ_0 belongs to the fields before the step. This is the chain rule, for any
method in Shu-Osher form (W. Hager, Numerische Mathematik 87 (2000) 247-282, for Butcher tables).

The method `reversed_steps` makes of this has the fields u, ȳ and the sums p̄. It begins with u before the steps and ȳ after
them, takes the stages of u except the last one, and then those of ȳ from the last to the first. Where (∂f/∂u)ᵀ(y_j) is
evaluated, a stage puts u back to y_j. u ends as it began. A backend takes these stages like those of any step, so values
between them need not be stored, and the halos are exchanged once.

For a time series, the derivative with respect to its value at the time of y_j is the term of j alone. A field for each j holds
it; its value before the step does not matter.

In a partitioned method such as leapfrog, the slopes at y_j move the fields of one group g, so that k̄_j is 0 for all others.
Then the reverse of that stage evaluates the part of (∂f/∂u)ᵀ k̄_j that comes from the fields of this group, at ȳ_(j+1) itself:
  ȳ_j = Σ_(i > j) a_ij ȳ_i + dt b_(j+1)j (∂f_g/∂u)ᵀ(y_j) ȳ_(j+1).
With damping, as f / (1 + w dt r) is linear in f, the same holds for the fields of group g themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from hpcstencil.numerics.integrators import LaterNode, Method, Stage, Terms

IS_ZERO = -1  # instead of the number of a result: a ȳ that is 0
SUMS = -1  # the group of the gradients of parameters, if it is a group of its own
OPERANDS = -500  # the group of what operators of a reverse step with a tape read (`adjoint.tape`)
BY_STAGE, MOST_STAGES = -1000, 1000  # of `by_stage`, below all other groups


def cotangent(group: int) -> int:
    """The group of the derivatives ȳ of the fields of a ``group`` of the forward method."""
    return -2 - group


def sums(method: Method) -> int:
    """The group of the gradients of parameters, which add up. In a method of one stage ȳ adds up too."""
    return cotangent(0) if len(method.stages) == 1 else SUMS


def by_stage(k: int, j: int) -> int:
    """The group of the derivatives with respect to the values of time series at y_j of step k."""
    return BY_STAGE - MOST_STAGES * k - j


def separate(method: Method) -> bool:
    """Whether each stage moves one group of fields from the stage before, as in leapfrog without damping.

    If each transposed right-hand side also depends on the ȳ of one group only, the reverse method has the same form: it is
    leapfrog with the groups exchanged.
    """
    return method.partitioned and all(
        stage.group is not None and stage.values == ((j, 1.0),) and [i for i, _ in stage.slopes] == [j]
        for j, stage in enumerate(method.stages)
    )


def one_by_one(method: Method) -> bool:
    """Whether each stage moves one group of fields, by slopes at the stage before or none, as all forms of leapfrog do."""
    return method.partitioned and all(
        stage.group is not None and [i for i, _ in stage.slopes] in ([], [j]) for j, stage in enumerate(method.stages)
    )


class TwoStepPart(Enum):
    """What a stage of the adjoint of a two-step method evaluates."""

    WHOLE = "(∂f/∂u)ᵀ"
    APART = "(∂g/∂u)ᵀ"
    STEP = "the step of u itself"


def reversed_two_step(
    method: Method, with_states: bool, timed: Collection[int]
) -> tuple[Method, dict[int, TwoStepPart]]:
    """The method whose step reverses a step of a two-step ``method``, and the part that it evaluates at each stage value.

    With the slopes m from the beginning of the step before, a step is
      y = u + dt (b f(u) + r m),   m_new = f(u),   u_new = y, or with a part g that is treated apart y + dt g(y).
    By the chain rule, ȳ = ū_new + dt (∂g/∂u)ᵀ(y) ū_new, then
      k̄ = dt b ȳ + m̄_new,   ū = ȳ + (∂f/∂u)ᵀ(u) k̄,   m̄ = dt r ȳ.
    The groups are those of `reversed_steps`: 0 for u, `cotangent` (0) for ū, `cotangent` (1) for m̄, SUMS, and `by_stage` for
    each number in ``timed``.
    """
    of_u, of_memory = cotangent(0), cotangent(1)
    stages, nodes, parts = list[Stage](), [0.0], dict[int, TwoStepPart]()

    def add(node: float, value: int | None, weight: float, slopes: Terms, group: int) -> None:
        stages.append(Stage(() if value is None else ((value, weight),), slopes, group))
        nodes.append(node)

    if len(method.stages) > 1:
        if with_states:
            parts[0] = TwoStepPart.STEP
            add(method.nodes[1], 0, 1.0, ((0, 1.0),), 0)
        else:
            add(method.nodes[1], 0, 1.0, (), of_u)
        parts[1] = TwoStepPart.APART
        for group in (of_u, SUMS):
            add(method.nodes[1], len(stages), 1.0, ((1, 1.0),), group)
        if 1 in timed:
            add(method.nodes[1], None, 1.0, ((1, 1.0),), by_stage(0, 1))
        add(0.0, 0 if with_states else len(stages), 1.0, (), 0 if with_states else of_u)
    here = len(stages)
    parts[here] = TwoStepPart.WHOLE
    for group, weight in ((of_u, 1.0), (of_memory, 0.0), (SUMS, 1.0)):
        add(0.0, here, weight, ((here, 1.0),), group)
    if 0 in timed:
        add(0.0, None, 1.0, ((here, 1.0),), by_stage(0, 0))
    return Method(tuple(stages), order=1, times=tuple(nodes), injected=(len(stages),)), parts


@dataclass(frozen=True)
class Reversed:
    """What `reversed_steps` makes: the ``method``, and by the numbers of its stage values at which slopes are evaluated:
    ``part_of``, the group to whose ȳ these slopes belong, if they are parts of the transposed right-hand sides; and
    ``stage_of``, the number j of the stage value y_j of the step, if they are the whole right-hand sides."""

    method: Method
    part_of: Mapping[int, int]
    stage_of: Mapping[int, int]


def reversed_steps(
    method: Method,
    groups: tuple[int, ...],
    steps: int,
    with_states: bool,
    apart: bool,
    moved_by: Mapping[int, Collection[int]] | None,
    timed: Collection[int],
    with_operands: Collection[int],
) -> Reversed:
    """The method whose step reverses some ``steps`` of ``method``, which must not be a multistep one.

    ``groups`` are those of the fields, (0,) if the method is not partitioned. The groups of the new method are: for the fields
    themselves their own, for their ȳ `cotangent`, and `sums` for the gradients of parameters. If it is ``apart``, which
    needs `separate`, all that the ȳ of a group move is in the `cotangent` of that group instead. The derivatives with respect
    to time series at the y_j with numbers in ``timed`` have groups `by_stage`. Without states there are no fields but ȳ, the
    sums and those; the derivatives must not depend on the fields then.

    At the y_j with numbers in ``with_operands``, a stage evaluates the fields of the group OPERANDS before the slopes.

    For a method with `one_by_one`, ``moved_by`` may give the groups of the new method that the ȳ of each group move. Then the
    stages evaluate parts of the transposed right-hand sides.
    """
    assert not method.multistep and (separate(method) or not apart) and (one_by_one(method) or moved_by is None)
    making = _Making(method, groups, with_states, apart, moved_by, timed, with_operands)
    starts = [making.forwards(k, whole=k < steps - 1) for k in range(steps)] if with_states else [[0]] * steps
    making.cotangents = dict.fromkeys(groups, len(making.stages))
    ends = []
    for k in reversed(range(steps)):
        making.backwards(k, starts[k])
        ends.append(making.now)
        # What is added at the end of a step (`Method.injected`) is in this result only.
        making.cotangents = {group: n if n == IS_ZERO else making.now for group, n in making.cotangents.items()}
    # Slopes that several stages of a step use are rounded before they are added; so they are here, for the same bits.
    uses = Counter(j for stage in method.stages for j, _ in stage.slopes)
    shared = {start[j] for start in starts for j in uses if uses[j] > 1} if with_states else set()
    made = Method(
        tuple(making.stages), order=1, times=tuple(making.nodes), rounded=frozenset(shared), injected=tuple(ends)
    )
    return Reversed(made, making.part_of, making.stage_of)


@dataclass
class _Making:
    """The stages of the new method so far, with the nodes c of their results; ``state`` and ``cotangents`` are the numbers of
    the results that hold the present u, and the present ȳ by group. ``part_of`` and ``stage_of`` are those of `Reversed`."""

    method: Method
    groups: tuple[int, ...]
    with_states: bool
    apart: bool
    moved_by: Mapping[int, Collection[int]] | None
    timed: Collection[int]
    with_operands: Collection[int]
    stages: list[Stage] = field(default_factory=list)
    nodes: list[float] = field(default_factory=lambda: [0.0])
    state: int = 0
    cotangents: dict[int, int] = field(default_factory=dict)
    part_of: dict[int, int] = field(default_factory=dict)
    stage_of: dict[int, int] = field(default_factory=dict)

    @property
    def now(self) -> int:
        """The number of the last result."""
        return len(self.stages)

    def add(self, node: float, values: Terms, slopes: Terms, group: int, evaluates: bool = False) -> int:
        """Add a stage and return the number of its result."""
        self.stages.append(Stage(values, slopes, group, evaluates=evaluates))
        self.nodes.append(node)
        return self.now

    def forwards(self, k: int, whole: bool) -> list[int]:
        """Add the stages of step k, and its last one if it is ``whole``. Returns the numbers of y_0 .. y_(s-1)."""
        method = self.method
        y = [self.state]
        for i, stage in enumerate(method.stages if whole else method.stages[:-1], start=1):
            values, slopes = ([(y[j], weight) for j, weight in terms] for terms in (stage.values, stage.slopes))
            group = 0 if stage.group is None else stage.group
            node = LaterNode.of(k + 1, 0.0) if i == len(method.stages) else LaterNode.of(k, method.nodes[i])
            y.append(self.add(node, tuple(values), tuple(slopes), group))
        self.state = y[-1]
        return y[: len(method.stages)]

    def restored(self, node: float, state: int) -> None:
        """Make the last result one at this node with u from the result number ``state``, and with the present ȳ."""
        if self.with_states and self.state != state:
            for group in self.groups:
                self.add(node, ((state, 1.0),), (), group)
            self.state = state
        elif self.nodes[-1] != node:
            self.add(node, ((self.now, 1.0),), (), cotangent(self.groups[0]))

    def backwards(self, k: int, y: list[int]) -> None:
        """Add the stages of the transpose of step k, whose stage values y_j are the results with these numbers."""
        method = self.method
        bars = {len(method.stages): dict(self.cotangents)}
        for j in reversed(range(len(method.stages))):
            node = LaterNode.of(k, method.nodes[j])
            values = {group: self.terms(group, j, bars, "values") for group in self.groups}
            if self.moved_by is not None:
                self.moved(node, k, j, y[j] if self.with_states else 0, values)
                bars[j] = dict(self.cotangents)
                continue
            slopes = {group: self.terms(group, j, bars, "slopes") for group in self.groups}
            if any(slopes.values()):
                self.restored(node, y[j] if self.with_states else 0)
            if self.apart:
                self.add_operands(node, j)
                moved = method.stages[j].group
                assert moved is not None
                ((_, weight),) = method.stages[j].slopes
                slope = ((self.now, weight),)
                self.add_timed(node, k, j, slope)
                self.add(node, ((self.now, 1.0),), slope, cotangent(moved))
                self.cotangents = dict.fromkeys(self.groups, self.now)
            elif any(slopes.values()):
                self.evaluated(node, k, j, values, slopes)
            else:
                for group, terms in values.items():
                    self.cotangents[group] = self.add(node, terms, (), cotangent(group))
            bars[j] = dict(self.cotangents)

    def add_operands(self, node: float, j: int) -> None:
        """Add the stage that evaluates what operators read in the slopes at y_j, if it is to be evaluated apart."""
        if j in self.with_operands:
            self.add(node, (), ((self.now, 1.0),), OPERANDS, evaluates=True)

    def add_timed(self, node: float, k: int, j: int, slopes: Terms) -> None:
        """Add the stage of the derivatives with respect to time series at y_j of step k, if there are any."""
        if j in self.timed:
            self.add(node, (), slopes, by_stage(k, j))

    def moved(self, node: float, k: int, j: int, state: int, values: Mapping[int, Terms]) -> None:
        """Add the stages of ȳ_j and of the sums, by the part of the ȳ of the group that the stage after y_j moves.

        ``state`` is the number of the result that holds y_j, and ``values`` are the terms Σ_(i > j) a_ij ȳ_i by group.
        """
        stage = self.method.stages[j]
        group, slopes = stage.group, tuple[tuple[int, float], ...]()
        assert group is not None and self.moved_by is not None
        moving = self.moved_by[group] if stage.slopes else ()
        if moving:
            self.restored(node, state)
            self.add_operands(node, j)
            ((_, weight),) = stage.slopes
            slopes, self.part_of[self.now] = ((self.now, weight),), group
        for each, terms in values.items():
            added = slopes if cotangent(each) in moving else ()
            if not terms:  # a later stage computes this group from values before y_j alone
                assert not added
                self.cotangents[each] = IS_ZERO
            elif added or terms != ((self.cotangents[each], 1.0),):
                self.cotangents[each] = self.add(node, terms, added, cotangent(each))
        if sums(self.method) in moving:
            self.add(node, ((self.now, 1.0),), slopes, sums(self.method))
        self.add_timed(node, k, j, slopes)

    def terms(self, group: int, j: int, bars: Mapping[int, Mapping[int, int]], kind: str) -> Terms:
        """The terms of Σ_i a_ij ȳ_i or Σ_i b_ij ȳ_i (``kind`` "values" or "slopes") of the fields of a group."""
        found = []
        for i, stage in enumerate(self.method.stages, start=1):
            if stage.group is not None and group != stage.group:
                found += [(bars[i][group], 1.0)] if kind == "values" and i == j + 1 else []
            else:
                found += [(bars[i][group], weight) for number, weight in getattr(stage, kind) if number == j]
        return tuple(term for term in found if term[0] != IS_ZERO)

    def evaluated(self, node: float, k: int, j: int, values: Mapping[int, Terms], slopes: Mapping[int, Terms]) -> None:
        """Add the stages of ȳ_j and of the sums, from the derivatives at the present u of what ``slopes`` combine."""
        weight = 1.0
        if len(self.groups) == 1 and len(slopes[self.groups[0]]) == 1:
            group = self.groups[0]
            ((source, weight),) = slopes[group]
            if source != self.cotangents[group]:
                self.cotangents[group] = self.add(node, ((source, 1.0),), (), cotangent(group))
        else:
            for group, terms in slopes.items():  # fields that the stage does not move count as 0
                self.add(node, terms or ((self.cotangents[group], 0.0),), (), cotangent(group))
        self.add_operands(node, j)
        here = self.now
        self.stage_of[here] = j
        self.add_timed(node, k, j, ((here, weight),))
        if sums(self.method) not in map(cotangent, self.groups):
            self.add(node, ((here, 1.0),), ((here, weight),), sums(self.method))
        elif values[0] == ((self.cotangents[0], 1.0),):
            values = {0: ((here, 1.0),)}  # the same value, of all that adds up
        for group, terms in values.items():
            self.cotangents[group] = self.add(node, terms, ((here, weight),), cotangent(group))
