"""What native code stores between the passes of a step, and how many planes its passes compute together."""

import numpy as np
import pytest
from support import problem_of

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.backends.native.step import all_stored, step_of
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.symbolic.expressions import Field, Halfway, Node, Pointwise

U = Field("u", beyond=True)


def below(tree: Node) -> Node:
    return Halfway(tree, 0, "below", "faces", beyond=True)


def above(tree: Node) -> Node:
    return Halfway(tree, 0, "above", "faces", beyond=True)


SQUARE, ROOT = U * U, Pointwise("sqrt", (U,))


@pytest.mark.parametrize(
    "tree, stored",
    [
        (below(SQUARE), {SQUARE}),
        (below(U + SQUARE), {U + SQUARE}),  # one array, whichever of the two is stored
        (below(U + SQUARE) + above(U - SQUARE), {SQUARE}),  # one array instead of two
        (below(U + SQUARE + ROOT) + above(U - SQUARE - ROOT), {U + SQUARE + ROOT, U - SQUARE - ROOT}),
        (below(above(U) - below(U)), set()),  # a sum of shifts of the field
        (below(above(SQUARE) - below(SQUARE)), {SQUARE}),
        (Halfway(above(U) - below(U), 0, "difference", "faces", beyond=True), {above(U) - below(U)}),  # is no shift
    ],
)
def test_sums_that_only_shifts_read_are_not_stored(tree, stored):
    assert all_stored({"u": tree}, {U: 0}) == stored


@pytest.mark.parametrize("shape, at_once", [
    ((40, 30), [2, 2, 1, 2]), pytest.param((20, 20, 20), [1, 1, 1, 1], marks=pytest.mark.long)
])  # fmt: skip
def test_a_gas_stores_its_primitive_variables_slopes_and_fluxes(shape, at_once):
    """In each of two stages: velocity and pressure, then the slope and the flux of each field along each axis."""
    step = step_of(problem_of(grid={"shape": shape}, equation={"name": "euler"}, numerics={"integrator": "ssprk2"}))
    ndim = len(shape)
    assert sum(array.deep for array in step.plan.arrays) == 2 * (ndim + 1 + 2 * ndim * (ndim + 2))
    assert [one.at_once for one in step.passes] == 2 * at_once


def test_a_laplacian_is_computed_once_where_steps_are_reversed(tmp_path):
    """Two of three steps are taken forwards, and their ∇²u is stored for the derivatives with respect to c."""
    np.save(tmp_path / "c.npy", np.ones((40, 30)))
    problem = problem_of(
        grid={"shape": (40, 30)},
        equation={"name": "wave", "c": str(tmp_path / "c.npy")},
        numerics={"integrator": "leapfrog"},
        objective={"misfit": "integral(u**2)"},
        gradient={"of": ["equation.c"]},
    )
    step = step_of(adjoint_of(problem, ()).reversing(Decomposed.of(problem, 1, 1).topology, 3))
    passes, operands = step.passes[: len(step.parts)], [array.operand for array in step.plan.arrays]
    looked_at = [operands[array] for one in passes for array, reach, _ in one.inputs if any(reach)]
    assert looked_at.count(Field("u")) == 3
    assert len(looked_at) == 6  # and three times the product that the transposed step differentiates
    read = {array for one in passes for array, _, _ in one.inputs}
    assert {array for one in passes for array in one.outputs} <= {*read, *step.plan.ends}


def test_an_operand_that_two_stages_read_is_computed_once():
    """The memories ψ move before the memories ζ, which read ψ/ρ in neighbouring cells, as q does after them."""
    layer = {"cpml": {"width": 5.0}}
    step = step_of(
        problem_of(
            grid={"shape": (40, 30), "upper": (40.0, 30.0)},
            equation={"name": "acoustic", "rho": "1 + 0.1*x"},
            boundary={"x": layer, "y": layer},
            numerics={"integrator": "leapfrog"},
        )
    )
    operands = [array.operand for array in step.plan.arrays if isinstance(array.operand, Pointwise)]
    assert len(operands) == len(set(operands)) == 2
    assert len(step.parts) == 3  # p; ψ; ζ, q and p


def test_a_sponge_takes_one_table_per_axis():
    """It damps both fields by one σ, and σ/2 and 1 + σ dt/2 are no further functions to look up."""
    layer = {"sponge": {"width": 5.0, "strength": 1.0}}
    step = step_of(
        problem_of(
            grid={"shape": (20, 20, 20), "upper": (20.0, 20.0, 20.0)},
            equation={"name": "wave"},
            boundary={"x": layer, "y": layer, "z": layer},
            numerics={"integrator": "leapfrog"},
        )
    )
    assert len(step.text.tables.texts) == 3
    assert not step.text.fixed.texts


@pytest.mark.parametrize("shape", [(12, 8), (12, 8, 8)])
def test_steps_of_a_gas_between_walls_are_reversed(shape):
    """Cells beside walls take derivatives of conditions too, so the passes read many planes."""
    walls = {axis: {"neumann": 0.0} for axis in "xyz"[: len(shape)]}
    still = {f"m{axis}": {axis: {"dirichlet": 0.0}} for axis in walls}
    problem = problem_of(
        grid={"shape": shape},
        equation={"name": "euler"},
        boundary={**walls, **still},
        numerics={"integrator": "ssprk2"},
        objective={"energy": "integral(E*rho)"},
        gradient={"of": ["initial.E"]},
    )
    step = step_of(adjoint_of(problem, ()).reversing(Decomposed.of(problem, 1, 1).topology, 1))
    assert max(len(variant.planes) for one in step.passes for variant in one.variants.values()) > 256
