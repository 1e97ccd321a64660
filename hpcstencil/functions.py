"""Pointwise functions, under the name that files of equations import."""

from hpcstencil.symbolic.functions import *  # noqa: F403
