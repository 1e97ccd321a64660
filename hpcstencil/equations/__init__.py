"""Right-hand sides, one file per family. A new built-in is a class of the form of `base.Equation`, listed here."""

from hpcstencil.equations.base import Equation, Rates
from hpcstencil.equations.burgers import Burgers
from hpcstencil.equations.custom import Custom
from hpcstencil.equations.gray_scott import GrayScott
from hpcstencil.equations.heat import AdvectionDiffusion, Heat
from hpcstencil.equations.wave import Wave

EQUATIONS: dict[str, type[Equation]] = {
    "heat": Heat,
    "advection_diffusion": AdvectionDiffusion,
    "wave": Wave,
    "burgers": Burgers,
    "gray_scott": GrayScott,
}

__all__ = ["EQUATIONS", "Custom", "Equation", "Rates"]
