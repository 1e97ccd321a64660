"""Inputs with receivers at random places, or with diagnostics, their runs in this process, and what the output holds."""

import h5py
import jax
import numpy as np
import pytest
from decompositions import step_for, tables
from support import problem_of

from hpcstencil.config.reader import from_mapping
from hpcstencil.problem.build import build
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.signals import Request
from hpcstencil.simulation import run
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.restart import Options
from hpcstencil.simulation.streams.snapshots import DiagnosticRows

STEPS = 37
INITIAL = "0.3 + 0.2*noise(1) + 0.1*x"


def with_probes(row, seed=3, receivers=9, **changes):
    """The input of a row of the invariance table with receivers at random places, on the boundary and on cells too, in
    two tables."""
    given = tables(*row)
    grid, rng = given["grid"], np.random.default_rng(seed)
    places = rng.random((receivers, len(grid["shape"]))) * grid["upper"]
    places[0], places[1] = 0.0, grid["upper"]
    places[2] = [(n // 2 + 0.5) * 0.1 for n in grid["shape"]]
    if "mask" in given:  # outside of its solid cells, some beside them
        places = np.array([[1.3, 1.2], [2.6, 1.8], [0.02, 3.69], [3.9, 0.3], [2.0, 2.45], [0.25, 0.5]])
    fields = list(problem_of(**given).shown)
    given.setdefault("initial", dict.fromkeys(fields, INITIAL))
    axes = dict(zip("xyz", places.T.tolist(), strict=False))
    probes = {"a": {"field": fields[0], **axes}, "b": {"field": fields[-1], "every_steps": 5, **axes}}
    time = {"dt": step_for(row[0]), "end": STEPS * step_for(row[0])}
    return {**given, "probes": probes, "time": time, **changes}


def with_diagnostics(row, **changes):
    """The input of `with_probes` with reductions of all fields after every third step."""
    given = with_probes(row)
    fields = [name for name in problem_of(**given).changing if name.isidentifier()]
    kinds = {f"{kind}_{name}": f"{kind}({name})" for name in fields for kind in ("integral", "min", "max")}
    return {**given, "diagnostics": {"every_steps": 3, **kinds}, **changes}


def with_expressions(row, **changes):
    """The input of `with_probes` with reductions after every third step: of expressions of each field, of expressions of
    all that live at the same place, and of one field."""
    given = with_probes(row)
    problem = problem_of(**given)
    fields = [name for name in problem.changing if name.isidentifier()]
    each = {f"of_{name}": f"integral((x + t)*exp(-{name}**2))" for name in fields}
    together = [name for name in fields if problem.positions.get(name) == problem.positions.get(fields[0])]
    whole = {
        "field": f"max({fields[0]})",
        "largest": f"max(0.25*abs({' + '.join(together)}) - 0.1)",
        "energy": f"mean({' + '.join(f'{name}**2' for name in together)})",
    }
    return {**given, "diagnostics": {"every_steps": 3, **each, **whole}, **changes}


def with_stencils(row, **changes):
    """The input of `with_probes` with reductions after every third step: of derivatives of each field with functions of the
    time and of coordinates, of one along two axes, and of others."""
    given = with_probes(row)
    problem = problem_of(**given)
    fields = [name for name in problem.changing if name.isidentifier()]
    axes = "xyz"[: len(given["grid"]["shape"])]
    slopes = {name: " + ".join(f"d{axis}({name})**2" for axis in axes) for name in fields}
    each = {f"of_{name}": f"integral((x + t)*({slope}))" for name, slope in slopes.items()}
    whole = {
        "curvature": f"max(abs(sqrt(1 + x*{axes[-1]})*{fields[-1]}*laplacian({fields[-1]})))",
        "field": f"min({fields[0]})",
        "square": f"mean({fields[0]}**2)",
    }
    if len(axes) > 1 and "mask" not in given:  # beside solid cells it needs a second pass
        whole["mixed"] = f"max(abs(dxy({fields[0]})))"
    return {**given, "diagnostics": {"every_steps": 3, **each, **whole}, **changes}


def with_nested(row, **changes):
    """The input of `with_probes` with reductions after every third step of derivatives along a periodic axis: of products and
    of other derivatives."""
    given = with_probes(row)
    problem = problem_of(**given)
    name, axes = problem.shown[0], "xyz"[: len(given["grid"]["shape"])]
    along = next(axis for axis, whole in zip(axes, problem.config.boundary.periodic, strict=True) if whole)
    nested = f"max(abs(d{along}({name}**2 + x*d{axes[-1]}({name}))))"
    return {
        **given,
        "diagnostics": {"every_steps": 3, "nested": nested, "product": f"mean(abs(d{along}(1/(2 + {name}))))"},
        **changes,
    }


def probing_expressions(row, every=2, **changes):
    """The input of `with_probes` with a table for each of some expressions too: of derivatives of each field, with functions of
    the time and of coordinates, and one without derivatives."""
    given = with_probes(row)
    problem = problem_of(**given)
    fields = [name for name in problem.changing if name.isidentifier()]
    axes = "xyz"[: len(given["grid"]["shape"])]
    texts = {
        **{f"slope_{name}": f"(x + t)*d{axes[-1]}({name})" for name in fields},
        "curvature": f"sqrt(1 + x*{axes[-1]})*laplacian({fields[-1]})",
        "same": f"sqrt(1 + x*{axes[-1]})*laplacian({fields[-1]})",
        "square": f"{fields[0]}**2",
    }
    if problem.mask is None and not problem.positions:  # beside solid cells it needs a second pass
        texts["mixed"] = f"dxy({fields[0]})" if len(axes) > 1 else f"d{axes}({fields[0]})"
    places = {axis: given["probes"]["a"][axis] for axis in axes}
    for n, (name, text) in enumerate(texts.items()):
        given["probes"][name] = {"expression": text, "every_steps": every * (1 + n % 2), **places}
    return {**given, **changes}


def diagnostics(path):
    """{name: column} of the rows of diagnostics in an output, with step and time."""
    with h5py.File(path) as file:
        return {name: column[()] for name, column in file["diagnostics"].items()}


def file_of(path, given, communicator=None, devices=1, **options):
    """The output of a run of these tables in this process."""
    communicator = communicator or OneProcess()
    decomposed = Decomposed.of(build(from_mapping(given, path.parent)), communicator.size, devices)
    run.run(decomposed, Options(path, quiet=True, **options), communicator, jax.local_devices()[:devices], Request())
    return path


def counted_calls(monkeypatch, stream=DiagnosticRows):
    """A list to which later runs with diagnostics, or another ``stream``, add the numbers of steps of their calls."""
    counts, before = [], stream.before
    monkeypatch.setattr(
        stream, "before", lambda self, *given: counts.append(given[1].steps.count) or before(self, *given)
    )
    return counts


def samples(path):
    """{table: (steps, times, values)} of the probes in an output."""
    with h5py.File(path) as file:
        return {
            name: tuple(group[part][()] for part in ("step", "time", "values"))
            for name, group in file["probes"].items()
        }


ROWS = [
    ("heat-2d-walls", 4, "float32", "rk4"),
    ("heat-1d", 6, "float64", "euler"),
    ("wave-2d", 4, "float32", "leapfrog"),  # whose steps are joined: the value of u is computed again
    ("maxwell-3d", 2, "float64", "leapfrog"),
    ("wave-3d", 8, "float32", "euler"),
    ("acoustic-2d", 8, "float64", "ssprk2"),
    ("shallow-2d", 2, "float64", "ab2"),  # fields on faces
    ("schroedinger-2d", 2, "float32", "leapfrog"),
    ("gray-scott-3d", 2, "float32", "euler"),
    ("gas-2d", 2, "float32", "ssprk2"),  # solid cells
]
# The rows with numbers of threads: all with 3, and some with 1.
ON_THREADS = [
    pytest.param(row, threads, id=f"{row[0]}-{threads}", marks=() if threads == 3 or n % 3 == 0 else pytest.mark.long)
    for n, row in enumerate(ROWS)
    for threads in (1, 3)
]
