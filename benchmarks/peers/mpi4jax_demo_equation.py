"""The shallow water equations with the friction of `examples/shallow_water.py` of mpi4jax 0.9.1, for comparisons."""

from hpcstencil.equations.shallow_water import ShallowWater
from hpcstencil.functions import where
from hpcstencil.symbolic.expressions import Coordinate


class DemoShallowWater(ShallowWater):
    """With numerics.integrator = "ab2" and epsilon = 0.1, this is the discretization of the demo.

    It computes the friction of v from differences of v and u instead of v alone, and takes no gradient along y in the first row
    of cells.
    """

    def damping(self, f, p, space):
        (dx, dy), below, above = space.grid.spacing, space.below, space.above
        across_x = (above(f.v, 0) - below(f.u, 1)) / dx
        across_y = (above(f.v, 1) - above(below(below(f.u, 1), 1), 0)) / dy
        first_row = Coordinate(1) < space.grid.lower[1] + dy
        across_y = where(first_row, 0.0, across_y)
        friction = space.difference(across_x, 0) + space.difference(across_y, 1)
        return {"u": p.nu * space.laplacian(f.u), "v": p.nu * friction}
