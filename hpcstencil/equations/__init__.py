"""The built-in equations, one file per family. To add one, write a class in the form of `base.Equation` and list it
here."""

from hpcstencil.equations.base import (
    Equation,
    Limited,
    Positive,
    Radiating,
    Rates,
    Reflecting,
    Signalling,
    Split,
    Staggered,
    Walled,
)
from hpcstencil.equations.burgers import Burgers
from hpcstencil.equations.custom import Custom
from hpcstencil.equations.euler import Euler
from hpcstencil.equations.heat import AdvectionDiffusion, Heat, NonlinearDiffusion
from hpcstencil.equations.maxwell import Maxwell
from hpcstencil.equations.patterns import KuramotoSivashinsky, SwiftHohenberg
from hpcstencil.equations.phase_field import AllenCahn, CahnHilliard
from hpcstencil.equations.reaction_diffusion import FitzHughNagumo, GrayScott
from hpcstencil.equations.schroedinger import Schroedinger
from hpcstencil.equations.shallow_water import ShallowWater
from hpcstencil.equations.wave import Acoustic, Wave

EQUATIONS: dict[str, type[Equation]] = {
    "heat": Heat,
    "nonlinear_diffusion": NonlinearDiffusion,
    "advection_diffusion": AdvectionDiffusion,
    "wave": Wave,
    "acoustic": Acoustic,
    "euler": Euler,
    "maxwell": Maxwell,
    "shallow_water": ShallowWater,
    "burgers": Burgers,
    "gray_scott": GrayScott,
    "fitzhugh_nagumo": FitzHughNagumo,
    "allen_cahn": AllenCahn,
    "cahn_hilliard": CahnHilliard,
    "swift_hohenberg": SwiftHohenberg,
    "kuramoto_sivashinsky": KuramotoSivashinsky,
    "schroedinger": Schroedinger,
}

__all__ = [
    "EQUATIONS", "Custom", "Equation", "Limited", "Positive", "Radiating", "Rates", "Reflecting", "Signalling", "Split",
    "Staggered", "Walled",
]  # fmt: skip
