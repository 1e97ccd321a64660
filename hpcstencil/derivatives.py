"""Stencil operators, under the name that files of equations import."""

from hpcstencil.symbolic.operators import *  # noqa: F403
