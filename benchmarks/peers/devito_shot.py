"""The seismic shot of inputs/layered_ground.toml as a program with Devito; `devito_seismic.py` runs it by Devito's interpreter.

  python devito_shot.py TASK.json     # prints the seconds of the time loop; saves the gather, indexed (time, receiver)

p_tt = c² (∇²p + source), leapfrog in time, order 8 in space. Devito's grid points stand where hpcstencil has cell centres. The
surface lies half a cell above the first row, so four rows more hold the mirror image of p. The layers are hpcstencil's (CPML:
Komatitsch & Martin, Geophysics 72 (2007) SM155-SM167), and their memories take the trapezoidal rule in time.
"""

import json
import sys
import time

import devito as dv
import h5py
import numpy as np

with open(sys.argv[1]) as file:
    task = json.load(file)
dv.configuration["log-level"] = "ERROR"
dv.configuration["language"] = "openmp"
dt, steps, layer, above = task["dt"], task["steps"], task["layer"], 4

with h5py.File(task["model"]) as file:
    speeds, signal = file["c"][:].astype(task["precision"]), file["signal"][:]
receivers = np.loadtxt(task["receivers"], delimiter=",", skiprows=1)
nx, ny = speeds.shape[0], speeds.shape[1] + above
dx = task["upper"][0] / nx
origin = np.array([dx / 2, dx / 2 - above * dx])  # of the first point; Devito's "sinc" needs a grid whose origin is 0
grid = dv.Grid((nx, ny), extent=((nx - 1) * dx, (ny - 1) * dx), dtype=speeds.dtype.type)
x, y = grid.dimensions
after = grid.stepping_dim + 1


class Layer(dv.SubDomain):
    """The points of an absorbing layer at the ``side`` of an axis."""

    def __init__(self, axis, side):
        self.name, self.axis, self.side = f"{side}{axis}", axis, side
        super().__init__(grid=grid)

    def define(self, dimensions):
        return {d: (self.side, round(layer / dx)) if d.name == self.axis else d for d in dimensions}


def sparse(name, places):
    """Sources or receivers at places, with the weights that the task asks for."""
    more = {"name": name, "grid": grid, "npoint": len(places), "nt": steps + 1}
    if task["weights"] != "lagrange":
        radius = {"interpolation": "sinc", "r": 4} if task["weights"] == "sinc" else {}
        return dv.SparseTimeFunction(coordinates=places - origin, **more, **radius)
    below = np.floor((places - origin) / dx).astype(int)
    s = (places - origin) / dx - below
    points = range(-3, 5)
    weights = [np.prod([(s - k) / (j - k) for k in points if k != j], axis=0) for j in points]
    return dv.PrecomputedSparseTimeFunction(
        r=8, gridpoints=below, interpolation_coeffs=np.stack(weights, axis=-1), **more
    )


p = dv.TimeFunction(name="p", grid=grid, time_order=2, space_order=8)
c = dv.Function(name="c", grid=grid, space_order=8)
c.data[:] = np.pad(speeds, ((0, 0), (above, 0)), "edge")
update, memories = [dv.Eq(p.forward, 2 * p - p.backward + dt**2 * c**2 * p.laplace)], []
i, j = np.arange(nx) + 0.5, np.arange(ny) + 0.5
for d, depth, sides in ((x, np.minimum(i, nx - i) * dx, ("left", "right")), (y, (ny - j) * dx, ("right",))):
    sigma = -1.5 * speeds.max() * np.log(1e-4) / layer * np.maximum(0, 1 - depth / layer) ** 2
    rate = sigma + 0.3 * speeds.max() / layer
    a, b = (dv.Function(name=f"{name}{d}", grid=grid, dimensions=(d,), shape=sigma.shape) for name in "ab")
    a.data[:], b.data[:] = sigma / rate * (np.exp(-rate * dt) - 1) / 2, np.exp(-rate * dt)
    psi, zeta = (dv.TimeFunction(name=f"{name}{d}", grid=grid, space_order=8) for name in ("psi", "zeta"))
    px, pxx, psix = getattr(p, f"d{d}c"), getattr(p, f"d{d}2"), getattr(psi, f"d{d}c")
    for part in (Layer(d.name, side) for side in sides):
        update.append(dv.Eq(p.forward, p.forward + dt**2 * c**2 * (psix + zeta), subdomain=part))
        memories.append(dv.Eq(psi.forward, b * psi + a * (px + px.subs(p, p.forward)), subdomain=part))
        flux = pxx + psix
        memories.append(
            dv.Eq(zeta.forward, b * zeta + a * (flux + flux.subs({p: p.forward, psi: psi.forward})), subdomain=part)
        )
shot, gather = sparse("shot", np.array([task["source"]])), sparse("gather", receivers)
shot.data[:, 0] = np.interp(np.arange(steps + 1) * dt, task["signal_dt"] * np.arange(len(signal)), signal, right=0)
inject = shot.inject(field=p.forward, expr=shot * dt**2 * c**2 / dx**2)
surface = [dv.Eq(p[after, x, above - 1 - k], -p[after, x, above + k]) for k in range(above)]
operator = dv.Operator([*update, inject, *surface, *memories, gather.interpolate(expr=p)])
_ = operator.cfunction  # compiles now, outside of the measured time
began, cpu = time.perf_counter(), time.process_time()
operator(time_m=0, time_M=steps, dt=dt)
seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
print(json.dumps({"seconds": seconds, "cpu": cpu, "version": dv.__version__}))
np.save(task["gather"], gather.data[:: task["every"]])
