"""The built-in equations, one file per family.

To add one, write a class with the interface of `base.Equation` and list it in ``EQUATIONS`` at the end of its file. List
a new file here.
"""

from hpcstencil.equations import (
    burgers,
    euler,
    heat,
    maxwell,
    patterns,
    phase_field,
    reaction_diffusion,
    schroedinger,
    shallow_water,
    wave,
)
from hpcstencil.equations.base import (
    Equation,
    Family,
    HasDamping,
    HasPositiveFields,
    HasReflectedFields,
    Rates,
    Staggered,
    SupportsCfl,
    SupportsCflSignals,
    SupportsOpenBoundary,
    ValuesLiveOnWalls,
)
from hpcstencil.equations.custom import Custom

EQUATIONS: Family = {
    **heat.EQUATIONS,
    **wave.EQUATIONS,
    **euler.EQUATIONS,
    **maxwell.EQUATIONS,
    **shallow_water.EQUATIONS,
    **burgers.EQUATIONS,
    **reaction_diffusion.EQUATIONS,
    **phase_field.EQUATIONS,
    **patterns.EQUATIONS,
    **schroedinger.EQUATIONS,
}

__all__ = [
    "EQUATIONS", "Custom", "Equation", "Family", "HasDamping", "HasPositiveFields", "HasReflectedFields", "Rates", "Staggered",
    "SupportsCfl", "SupportsCflSignals", "SupportsOpenBoundary", "ValuesLiveOnWalls",
]  # fmt: skip
