"""Waves with a CPML around them as programs with Devito: Devito's side of `peer.Waves`.

The layers are those of hpcstencil (D. Komatitsch & R. Martin, Geophysics 72 (2007) SM155-SM167, eq. (7)-(13)), as recursive
convolutions, whose memories are computed in the layers only. Index i of a function on faces along an axis is the upper face of
cell i.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import devito as dv
import numpy as np
from peer import START, Waves


@dataclass
class Program:
    """The equations of a step, the field that begins with the pulse, all functions of time that change, and those of them that
    are known in the middle of steps."""

    equations: list[dv.Eq]
    field: dv.TimeFunction
    changing: list[dv.TimeFunction]
    halfway: list[dv.TimeFunction]


class Medium:
    """The grid of a problem, its layers, and functions of the place."""

    def __init__(self, problem: Waves) -> None:
        self.problem, self.dtype = problem, np.dtype(problem.precision).type
        self.grid = dv.Grid(problem.shape, extent=[n - 1.0 for n in problem.shape], dtype=self.dtype)
        self.layers = [[self.layer(d, side) for side in ("left", "right")] for d in self.grid.dimensions]
        self.memories = list[dv.TimeFunction]()

    def layer(self, axis: Any, side: str) -> dv.SubDomain:
        """The points of a layer at one side of an axis."""
        cells = self.problem.layer

        class Layer(dv.SubDomain):
            name = f"{side}{axis.name}"

            def define(self, dimensions: Any) -> Any:
                return {d: (side, cells) if d.name == axis.name else d for d in dimensions}

        return Layer(grid=self.grid)

    def along(self) -> list[np.ndarray]:
        """The distance of the cells from the ``centre`` along each axis, as arrays that broadcast to the grid."""
        return list(np.ix_(*[np.arange(n) - i for n, i in zip(self.problem.shape, self.problem.centre, strict=True)]))

    def function(self, name: str, values: np.ndarray) -> dv.Function:
        """A function of the place with these values in the cells, and the nearest ones beyond the boundary."""
        made = dv.Function(name=name, grid=self.grid, space_order=self.problem.order)
        made.data_with_halo[:] = np.pad(values, [(pad.left, pad.right) for pad in made._size_halo], "edge")
        return made

    def place(self, text: str) -> np.ndarray:
        """The values of an expression of the coordinates in all cells."""
        along = [a + i + 0.5 for a, i in zip(self.along(), self.problem.centre, strict=True)]
        values = eval(text, {"sin": np.sin, **dict(zip("xyz", along, strict=False))})
        return np.broadcast_to(values, self.problem.shape).astype(self.dtype)

    def stretched(self, axis: int, derivative: Any, on_faces: bool) -> tuple[Any, list[dv.Eq]]:
        """The memory ψ of a derivative along an axis, and the equations of ψ in the layers: ψ = b ψ + a · derivative."""
        problem, d = self.problem, self.grid.dimensions[axis]
        place = np.arange(problem.shape[axis]) + (1.0 if on_faces else 0.5)
        depth = np.clip(np.minimum(place, problem.shape[axis] - place), 0, None)
        sigma = -1.5 * problem.FASTEST * np.log(1e-4) / problem.layer * np.maximum(0, 1 - depth / problem.layer) ** 2
        rate = sigma + 0.3 * problem.FASTEST / problem.layer
        decay, number, factors = np.exp(-rate * problem.dt), len(self.memories), []
        for name, values in (("a", sigma / rate * (decay - 1)), ("b", decay)):
            factors.append(dv.Function(name=f"{name}{number}", grid=self.grid, dimensions=(d,), shape=place.shape))
            factors[-1].data[:] = values
        psi = dv.TimeFunction(name=f"psi{number}", grid=self.grid, space_order=problem.order)
        self.memories.append(psi)
        after = factors[1] * psi + factors[0] * derivative
        return psi.forward, [dv.Eq(psi.forward, after, subdomain=part) for part in self.layers[axis]]


def acoustic(medium: Medium) -> Program:
    """∂²p/∂t² = ρ c² ∇·(ρ⁻¹ ∇p)."""
    problem, grid = medium.problem, medium.grid
    c, rho = medium.function("c", medium.place(problem.C)), medium.function("rho", medium.place(problem.RHO))
    light = medium.function("light", 1.0 / medium.place(problem.RHO))
    p = dv.TimeFunction(name="p", grid=grid, time_order=2, space_order=problem.order)
    first, second, parts, total = list[dv.Eq](), list[dv.Eq](), list[dv.Eq](), 0
    scale = problem.dt**2 * rho * c**2
    for axis, d in enumerate(grid.dimensions):
        half = d.spacing / 2
        mean, slope = (light + light.subs(d, d + d.spacing)) / 2, getattr(p, f"d{d.name}")(x0=d + half)
        psi, memory = medium.stretched(axis, slope, True)
        inner, added = (getattr(mean * part, f"d{d.name}")(x0=d - half) for part in (slope, psi))
        zeta, memory_of_flux = medium.stretched(axis, inner + added, False)
        total, first, second = total + inner, first + memory, second + memory_of_flux
        parts += [dv.Eq(p.forward, p.forward + scale * (added + zeta), subdomain=each) for each in medium.layers[axis]]
    whole = dv.Eq(p.forward, 2 * p - p.backward + scale * total)
    return Program([*first, *second, whole, *parts], p, [p, *medium.memories], [])


def maxwell(medium: Medium) -> Program:
    """∂B/∂t = -∇×E, ∂E/∂t = c² ∇×B on the grid of Yee. Along an axis that is not its own, E is on faces and B in the cells."""
    problem, grid = medium.problem, medium.grid
    c, equations = medium.function("c", medium.place(problem.C)), list[dv.Eq]()
    fields = {
        kind: [dv.TimeFunction(name=f"{kind}{axis}", grid=grid, space_order=problem.order) for axis in "xyz"]
        for kind in "EB"
    }
    for kind, sources, scale in (
        ("B", fields["E"], -problem.dt),
        ("E", [each.forward for each in fields["B"]], problem.dt * c**2),
    ):
        memories, whole, parts = list[dv.Eq](), list[dv.Eq](), list[dv.Eq]()
        for own, target in enumerate(fields[kind]):
            after, before, curl = (own + 1) % 3, (own + 2) % 3, 0
            for axis, component, sign in ((after, before, 1), (before, after, -1)):
                d = grid.dimensions[axis]
                there = d + d.spacing / 2 if kind == "E" else d - d.spacing / 2
                slope = getattr(sources[component], f"d{d.name}")(x0=there)
                psi, memory = medium.stretched(axis, slope, kind == "E")
                curl, memories = curl + sign * slope, memories + memory
                added = target.forward + sign * scale * psi
                parts += [dv.Eq(target.forward, added, subdomain=each) for each in medium.layers[axis]]
            whole.append(dv.Eq(target.forward, target + scale * curl))
        equations += [*memories, *whole, *parts]
    return Program(equations, fields["E"][2], [*fields["E"], *fields["B"], *medium.memories], fields["B"])


def measure(problem: Waves) -> tuple[float, float]:
    """(seconds, value of the field in the central cell) of applying Devito's operator for all steps, after one to warm up."""
    dv.configuration["log-level"] = "ERROR"
    dv.configuration["language"] = "openmp"
    medium = Medium(problem)
    made = {"acoustic": acoustic, "maxwell": maxwell}[problem.equation](medium)
    operator, field, levels = dv.Operator(made.equations), made.field, made.field.time_order
    shift = 0.5 if problem.equation == "maxwell" else 0.0  # E_z is on faces along x and y
    squares = [(a + shift * (axis < 2)) ** 2.0 for axis, a in enumerate(medium.along())]
    pulse = START * np.exp(-sum(squares) / problem.WIDTH)
    field.data[:] = pulse
    operator.apply(time_m=levels - 1, time_M=levels - 1, dt=problem.dt)
    # p begins at rest, so its value after a step is in the middle between the pulse and what this step made of it. In the same
    # way, B half a step before the beginning is minus half of what the step made of it.
    first = (pulse + field.data[levels]) / 2
    halfway = [-each.data[1] / 2 for each in made.halfway]
    for each in made.changing:
        each.data[:] = 0.0
    for each, values in zip(made.halfway, halfway, strict=True):
        each.data[0] = values
    begin = 0
    field.data[0] = pulse
    if levels == 2:
        field.data[1], begin = first, 1
    began = time.perf_counter()
    operator.apply(time_m=begin, time_M=problem.steps - 1, dt=problem.dt)
    seconds = (time.perf_counter() - began) * problem.steps / (problem.steps - begin)
    return seconds, float(field.data[(problem.steps % (levels + 1), *problem.centre)])
