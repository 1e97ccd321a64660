"""Pointwise functions, under the name that equation files import."""

from hpcstencil.symbolic.functions import *  # noqa: F403  # all its public names: equations outside of this package may use any
