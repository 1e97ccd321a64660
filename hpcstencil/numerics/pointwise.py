"""Implementations of the pointwise functions of the expression language, for NumPy and JAX arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

LARGEST_INTEGER_POWER = 16


def functions(xp: ModuleType, dtype: Any) -> dict[str, Callable[..., Any]]:
    """The pointwise functions by name, implemented by ``xp``: numpy or jax.numpy.

    They take and return arrays of any shape. Comparisons return 1 or 0 in ``dtype``.
    """

    def number(compare: Callable[..., Any]) -> Callable[..., Any]:
        return lambda a, b: compare(a, b).astype(dtype)

    return {
        "add": xp.add, "subtract": xp.subtract, "multiply": xp.multiply, "divide": xp.divide,
        "negative": xp.negative, "power": xp.power,
        "less": number(xp.less), "less_equal": number(xp.less_equal), "greater": number(xp.greater),
        "greater_equal": number(xp.greater_equal), "equal": number(xp.equal), "not_equal": number(xp.not_equal),
        "where": lambda c, a, b: xp.where(c != 0, a, b),
        "abs": xp.abs, "sqrt": xp.sqrt, "exp": xp.exp, "log": xp.log, "sin": xp.sin, "cos": xp.cos, "tan": xp.tan,
        "tanh": xp.tanh, "minimum": xp.minimum, "maximum": xp.maximum, "sign": xp.sign,
    }  # fmt: skip


def integer_power(exponent: float) -> int | None:
    """The exponent as an int if it is an integer of at most LARGEST_INTEGER_POWER in magnitude, so that the power can
    be computed by multiplication; otherwise None."""
    whole = int(exponent) if abs(exponent) <= LARGEST_INTEGER_POWER else None
    return whole if whole == exponent else None


def half_integer_power(exponent: float) -> int | None:
    """The integer part, towards 0, of an exponent such as 1.5 or -0.5, at most LARGEST_INTEGER_POWER / 2 in magnitude, so that
    the power can be computed by multiplications and a square root; otherwise None."""
    twice = integer_power(2 * exponent)
    return None if twice is None or twice % 2 == 0 else int(exponent)
