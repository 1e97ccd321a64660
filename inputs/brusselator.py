"""The equation of brusselator.toml. A class like this one is all that an equation of one's own takes."""

from hpcstencil.equations import Rates


class Brusselator:
    """∂u/∂t = D_u ∇²u + A - (B + 1) u + u² v, ∂v/∂t = D_v ∇²v + B u - u² v.

    I. Prigogine & R. Lefever, "Symmetry breaking instabilities in dissipative systems", J. Chem. Phys. 48 (1968) 1695-1700.
    """

    parameters = {"A": 1.0, "B": 3.0, "D_u": 1.0, "D_v": 0.1}  # name and default of each
    solution_dependent = True  # `rates` looks at the fields

    def fields(self, ndim):
        """Names of the unknowns on a grid with so many axes."""
        return ("u", "v")

    def rhs(self, f, p, space):
        """The time derivative of each: f holds the fields, p the parameters, space the differential operators."""
        reaction = f.u**2 * f.v
        return {
            "u": p.D_u * space.laplacian(f.u) + p.A - (p.B + 1) * f.u + reaction,
            "v": p.D_v * space.laplacian(f.v) + p.B * f.u - reaction,
        }

    def rates(self, p, largest, ndim):
        """Optional: how fast the equation can change at most, so that [time] cfl works."""
        fastest = p.B + 1 + largest["u"] ** 2 + 2 * largest["u"] * largest["v"]
        return Rates(diffusion=max(p.D_u, p.D_v), reaction=fastest)
