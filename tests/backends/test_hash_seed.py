"""Generated code does not depend on Python's hash seed, which differs between processes.

Processes exchange arrays of a step by their numbers, so these must be the same on all of them.
"""

import os
import subprocess
import sys

PROGRAMS = """
from pathlib import Path

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.backends.native.program import program
from hpcstencil.config.reader import from_mapping
from hpcstencil.problem.build import build
from hpcstencil.problem.decomposition import decompose

LAYER = {"cpml": {"width": 3.0, "speed": 1.0}}
CASES = [
    ({"name": "shallow_water", "nu": 0.1}, "ab2", {}),
    ({"name": "acoustic", "c": 1.0}, "leapfrog", {"x": LAYER, "y": {"dirichlet": "0.1*t"}}),
    ({"name": "gray_scott"}, "rk4", {"x": {"neumann": 0.1}}),
    ({"name": "schroedinger"}, "ssprk3", {}),
]
for equation, integrator, boundary in CASES:
    tables = {
        "grid": {"shape": [12, 12]}, "equation": equation, "boundary": boundary,
        "numerics": {"integrator": integrator}, "time": {"end": 0.1, "dt": 0.01},
    }
    shown = build(from_mapping(tables, Path("."))).shown
    tables |= {"objective": {"J": f"integral({shown[-1]}**2)"}, "gradient": {"of": [f"initial.{name}" for name in shown]}}
    problem = build(from_mapping(tables, Path(".")))
    print(program(problem).text)
    print(program(adjoint_of(problem, problem.initial).reversing(decompose(problem, 1, 1))).text)
"""  # fmt: skip


def test_programs_do_not_depend_on_the_hash_seed():
    texts = [
        subprocess.run(
            [sys.executable, "-c", PROGRAMS],
            env={**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1] and len(texts[0]) > 10_000
