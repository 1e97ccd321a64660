"""Random inputs that are right: every part of the language, on small grids, as tables. A seed always gives the same one."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from reference import Reference

AXES = "xyz"
HALF_CELLS = ("difference_", "mean_", "below_", "above_")
METHODS = ("euler", "ssprk2", "ssprk3", "rk4", "lsrk4", "bs3", "dopri5", "ab2", "leapfrog", "rkl2")


class Author:
    """Writes one input, on a grid with ``scale`` times as many cells per axis as the smallest that fit."""

    def __init__(self, seed: int, scale: int = 1):
        self.scale = scale
        self.random = random.Random(seed)
        self.ndim = self.random.choice((1, 1, 2, 2, 2, 3))
        self.axes = AXES[: self.ndim]
        self.masked = self.random.random() < 0.25
        self.order = 2 if self.masked else self.random.choice((2, 2, 4, 6, 8))
        self.method = self.random.choice(METHODS)
        many = self.random.choice((1, 1, 2, 3))
        self.names = "uvw"[: max(2, many) if self.method == "leapfrog" else many]
        self.fields = self.names  # those that the expression in hand may use
        self.inner: list[str] = []  # operands that are no fields

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def likely(self, chance: float) -> bool:
        return self.random.random() < chance

    def number(self, low: float = 0.2, high: float = 1.5) -> str:
        return f"{self.random.uniform(low, high):.3f}"

    # ---- expressions -----------------------------------------------------------------------------------------------

    def smooth(self, time: bool = True) -> str:
        """Of coordinates, parameters and time, of the size of 1."""
        phases = "*".join(f"cos({self.number()}*{a} + {self.number()})" for a in self.axes if self.likely(0.7))
        text = f"{self.number()} + {self.number()}*{phases or 'p'}"
        return f"{text} + {self.number()}*t" if time and self.likely(0.4) else text

    def pointwise(self, depth: int = 2) -> str:
        """Of fields, coordinates, parameters and time, without operators; kinks only where rounding cannot cross them."""
        if depth == 0 or self.likely(0.2):
            leaves = [self.one(*self.fields)] * 4 + [self.number(), "p", "k", f"0.1*{self.one(*self.axes)}", "t"]
            return self.one(*leaves)
        a, b = self.pointwise(depth - 1), self.pointwise(depth - 1)
        threshold = f"{self.one(*self.fields, *self.axes)} {self.one('<', '<=', '>', '>=')} {self.number()}1"
        return self.one(
            f"({a} + {b})", f"({a} - {b})", f"({a})*({b})", f"-({a})", f"({a})**2", f"0.1*({a})**3", f"sin({a})",
            f"cos({a})", f"tanh({a})", f"abs({a})", f"exp(-({a})**2)", f"sqrt(1 + ({a})**2)", f"log(2 + ({a})**2)",
            f"({a})/(2 + ({b})**2)", f"(1 + ({a})**2)**0.7", f"minimum({a}, {b})", f"maximum({a}, {b})", f"tan(0.3*tanh({a}))",
            f"where({threshold}, {a}, {b})", f"({threshold})*({a})", f"sign({a} + 9.7)*({b})",
        )  # fmt: skip

    def operand(self, depth: int) -> str:
        """What an operator is applied to."""
        kind = self.random.random()
        if kind < 0.45:
            return self.one(*self.fields)
        if kind < 0.55:
            return self.one("k", self.smooth(), f"0.1*{self.one(*self.axes)}**2")
        text = self.operator(depth - 1) if kind < 0.8 and depth > 0 else self.pointwise()
        if depth > 0 and self.likely(0.4):
            text = f"{text} - {self.number()}*{self.one(*self.fields)}"
        self.inner.append(text)
        return text

    def operator(self, depth: int) -> str:
        axis = self.one(*self.axes)
        names = [
            "laplacian",
            "gradient_squared",
            "divergence",
            "div_grad",
            "div_grad",
            "upwind",
            "d",
            "dd",
            "mixed",
            "half",
        ]
        name = self.one(*names)
        if name in ("laplacian", "gradient_squared"):
            return f"{name}({self.operand(depth)})"
        if name == "divergence":
            return f"divergence({', '.join(self.operand(depth) for _ in self.axes)})"
        if name == "div_grad":
            return f"div_grad({self.operand(0)}, {self.operand(depth)})"
        if name == "upwind":
            speeds = ", ".join(self.one(self.pointwise(1), f"{self.number()} - 0.3*{axis}") for _ in self.axes)
            return f"upwind({self.operand(depth)}, {speeds})"
        if name == "half" and not self.masked:
            return self.half_cells(axis, depth)
        if name == "mixed" and self.ndim > 1:
            pair = sorted(self.random.sample(self.axes, 2))
            return f"d{''.join(pair)}({self.operand(depth)})"
        return f"d{axis * (2 if name == 'dd' else 1)}({self.operand(depth)})"

    def half_cells(self, axis: str, depth: int) -> str:
        """To the faces across an axis and back."""
        there, back = (self.one("difference", "mean", "below", "above") for _ in range(2))
        text = f"{there}_{axis}({self.pointwise(1) if self.likely(0.5) or not depth else self.operator(0)})"
        if self.likely(0.4):
            text = f"mean_{axis}({self.one(*self.fields)})*{text}"
        return f"{back}_{axis}({text})"

    def rate(self) -> str:
        terms = [f"{self.number()}*{self.operator(self.one(0, 1, 1, 2))}" for _ in range(self.one(1, 1, 2))]
        if self.likely(0.4):
            terms.append(self.pointwise())
        return self.one(" + ", " - ").join(terms)

    # ---- tables ----------------------------------------------------------------------------------------------------

    def condition(self) -> dict[str, Any]:
        value = self.one(0.0, self.smooth(), self.smooth())
        kind = self.one("dirichlet", "neumann", "robin")
        if kind == "robin":
            return {
                kind: {"a": self.one(1.0, f"1.5 + {self.smooth(False)}"), "b": float(self.number()), "value": value}
            }
        return {kind: value}

    def sides(self) -> dict[str, Any]:
        return self.condition() if self.likely(0.3) else {"lower": self.condition(), "upper": self.condition()}

    def of_inner(self, rates: dict[str, str]) -> dict[str, Any]:
        """Conditions for some inner result of a field, where there are no staggered operators."""
        named = [text for text in self.inner if text not in self.names and any(name in text for name in self.names)]
        if not named or any(word in "".join(rates.values()) for word in HALF_CELLS) or self.likely(0.5):
            return {}
        return {self.one(*named): self.one(self.condition(), {self.one(*self.axes): self.sides()})}

    def boundary(self, rates: dict[str, str]) -> dict[str, Any]:
        tables: dict[str, Any] = {a: self.one("periodic", self.sides(), self.sides()) for a in self.axes}
        walls = [a for a in self.axes if tables[a] != "periodic"]
        for name in self.names:
            if walls and self.likely(0.3):
                tables[name] = {self.one(*walls): self.sides()}
        operators = self.of_inner(rates) if len(walls) == self.ndim else {}
        return {**tables, "operators": operators} if operators else tables

    def grid(self) -> dict[str, Any]:
        shape = [self.scale * self.random.randint(self.order + 1, self.order + 6) for _ in self.axes]
        lower = [round(self.random.uniform(-2.0, 1.0), 3) for _ in self.axes]
        upper = [round(a + n * self.random.uniform(0.5, 1.2), 3) for a, n in zip(lower, shape, strict=True)]
        return {"shape": shape, "lower": lower, "upper": upper}

    def numerics(self) -> dict[str, Any]:
        own = {"rkl2": {"stages": self.one(3, 4, 6)}, "ab2": {"epsilon": self.one(0.0, 0.1)}}.get(self.method, {})
        return {"order": self.order, "integrator": self.method, "precision": "float64", **own}

    def mask(self, grid: dict[str, Any]) -> dict[str, Any]:
        """A ball that leaves most cells fluid."""
        centre = [self.random.uniform(a, b) for a, b in zip(grid["lower"], grid["upper"], strict=True)]
        radius = 0.3 * min(b - a for a, b in zip(grid["lower"], grid["upper"], strict=True))
        square = " + ".join(f"({a} - {c:.3f})**2".replace("- -", "+ ") for a, c in zip(self.axes, centre, strict=True))
        return {"solid": f"{square} < {radius**2:.4f}", "surface": self.one("no_flux", {"value": self.smooth()})}

    def diagnostics(self) -> dict[str, str]:
        return {
            "total": f"integral({self.one(*self.names)})",
            "other": f"{self.one('mean', 'integral', 'min', 'max')}({self.one(self.pointwise(), self.operator(1))})*(1 + t)",
        }

    def tables(self) -> dict[str, Any]:
        """The whole input, but for the parameters that nothing uses."""
        rates = {}
        for name in self.names:
            if self.method == "leapfrog":  # two groups, each of which drives only the other
                self.fields = self.names[1:] if name == "u" else "u"
            rates[name] = self.rate()
            if self.method == "leapfrog" and self.likely(0.5):  # and damping, or growth
                rates[name] += f" - ({self.smooth(False)})*{name}"
        self.fields = self.names
        parameters = {"p": float(self.number()), "k": self.smooth(False)}
        grid = self.grid()
        tables = {
            "grid": grid,
            "equation": {"name": "custom", "rhs": rates},
            "initial": {name: self.smooth(False) for name in self.names},
            "boundary": self.boundary(rates),
            "numerics": self.numerics(),
            "time": {"dt": 0.05, "end": 0.05 * self.one(1, 2, 2.4, 3)},
        }
        if self.masked:
            tables["mask"] = self.mask(grid)
        if self.likely(0.3):
            tables["diagnostics"] = self.diagnostics()
        for name, value in reversed(parameters.items()):
            if re.search(rf"\b{name}\b", str(tables)):
                tables["equation"][name] = value
        return tables


@dataclass(frozen=True)
class Way:
    """How a problem is computed."""

    kernel: str = "shift"
    devices: int = 1
    decomposition: dict[str, Any] = field(default_factory=dict)


def way(seed: int, ndim: int) -> Way:
    """Mostly what compiles fast: slices, one device, one tile."""
    chosen = random.Random(f"way {seed}")
    kernel = chosen.choices(("shift", "conv", "native", "pallas"), (14, 3, 2, 1))[0]
    if chosen.random() < 0.6:
        return Way(kernel)
    tiles = {"tiles": [chosen.choice((1, 2)) for _ in range(ndim)]} if kernel in ("shift", "conv") else {}
    return Way(kernel, chosen.choice((1, 2)), {**tiles, "steps_per_exchange": chosen.choice(("auto", 1, 2))})


def settled(seed: int, scale: int = 1) -> tuple[dict[str, Any], Reference]:
    """A random input and its reference, run to the end; with a smaller dt where fields would grow beyond all bounds."""
    tables = Author(seed, scale).tables()
    while True:
        reference = Reference(tables)
        with np.errstate(all="ignore"):
            reference.run()
        if all(np.abs(a).max() < 20 for a in reference.fields.values()):  # also false for nan
            return tables, reference
        tables["time"] = {key: value / 4 for key, value in tables["time"].items()}
