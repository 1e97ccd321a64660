"""The gradient of full-waveform inversion by the solver of Devito's tutorials; `inversion_gradient.py` starts it with Devito's
interpreter.

  python devito_inversion.py TASK.json

`AcousticWaveSolver.forward` stores p after every step, and `jacobian_adjoint` takes the adjoint equation back and adds up the
zero-lag correlation, as in Devito's `examples/seismic/tutorials/03_fwi.ipynb`. The data are a forward run in the true model.
The program says when it is ready. Then each line on standard input makes it compute once, and print the seconds of a forward
run alone, and of the gradient. At the end of the input it saves the gather and the gradient of the objective with respect to c.
"""

import json
import os
import sys
import time

import devito as dv
import numpy as np
from examples.seismic import AcquisitionGeometry, SeismicModel
from examples.seismic.acoustic import AcousticWaveSolver

with open(sys.argv[1]) as file:
    task = json.load(file)
dv.configuration["log-level"] = "ERROR"
dv.configuration["language"] = "openmp"
arrays, steps, dt = np.load(task["model"]), task["steps"], task["dt"]
speeds = arrays["guess"]
ndim = speeds.ndim
model = SeismicModel(
    origin=(0.0,) * ndim, spacing=(task["spacing"],) * ndim, shape=speeds.shape, space_order=task["order"],
    vp=speeds, nbl=task["layer"], bcs="damp", dt=dt,
)  # fmt: skip
# The first step begins at index 1 and the last one at index `steps`, whose state the receivers record last.
geometry = AcquisitionGeometry(
    model, arrays["receivers"], arrays["source"], t0=0.0, tn=(steps + 0.5) * dt, f0=task["f0"], src_type="Ricker",
    t0w=task["t0"],
)  # fmt: skip
assert geometry.nt == steps + 2, (geometry.nt, steps)
solver = AcousticWaveSolver(model, geometry, space_order=task["order"])
source, observed, found = geometry.src, geometry.new_rec(name="observed"), geometry.new_rec(name="found")
residual = geometry.new_rec(name="residual")
u = dv.TimeFunction(name="u", grid=model.grid, save=geometry.nt, time_order=2, space_order=task["order"])
gradient = dv.Function(name="grad", grid=model.grid)
tuned = {"forward": {}, "saved": {}, "back": {}}


def forward(**more):
    """A forward run that stores three states."""
    solver.forward(src=source, rec=found, **more)


def whole():
    """The objective; its gradient with respect to 1/c² is in ``gradient``."""
    gradient.data[:] = 0.0
    solver.forward(src=source, rec=found, u=u, save=True, **tuned["saved"])
    residual.data[:] = found.data - observed.data
    solver.jacobian_adjoint(rec=residual, u=u, grad=gradient, **tuned["back"])
    return 0.5 * float(np.sum(np.square(residual.data, dtype=np.float64)))


def seconds(call, *arguments, **more):
    """The time of a call."""
    began = time.perf_counter()
    call(*arguments, **more)
    return time.perf_counter() - began


def tune():
    """Let Devito's autotuner choose the sizes of blocks for all three operators."""
    at = (task["autotuning"], "preemptive")
    forward(autotune=at)
    solver.forward(src=source, rec=found, u=u, save=True, autotune=at)
    solver.jacobian_adjoint(rec=residual, u=u, grad=gradient, autotune=at)
    operators = solver.op_fwd(None), solver.op_fwd(True), solver.op_grad()
    for key, operator in zip(tuned, operators, strict=True):
        tuned[key] = dict(operator._state["autotuning"][-1].get("tuned", {}))


truth = dv.Function(name="vp", grid=model.grid, space_order=task["order"])
inner = tuple(slice(task["layer"], n - task["layer"]) for n in model.grid.shape)
truth.data[:] = model.vp.data
truth.data[inner] = arrays["model"]
solver.forward(src=source, rec=observed, vp=truth)
whole()
if task["autotuning"] != "off":
    tune()
forward(**tuned["forward"])
whole()
print(json.dumps({"version": dv.__version__, "threads": os.environ["OMP_NUM_THREADS"], "tuned": tuned}), flush=True)
objective = 0.0
for _ in sys.stdin:
    times = [seconds(forward, **tuned["forward"])]
    began = time.perf_counter()
    objective = whole()
    times.append(time.perf_counter() - began)
    print(json.dumps(times), flush=True)
np.savez(
    task["results"], gather=found.data[1 : steps + 1], objective=objective,
    gradient=(np.array(gradient.data) * -2.0 / np.array(model.vp.data, dtype=np.float64) ** 3)[inner],
)  # fmt: skip
