"""Scripts that import hpcstencil: as plain programs, under mpirun, and where jax was there before."""

import os

import h5py
import pytest
from commands import INPUT, assert_same, contents, hpcstencil, python

pytestmark = pytest.mark.e2e

# What a script does on any number of processes. Rank 0 prints; each rank checks that it sees what it should.
SCRIPT = """
import os
import numpy as np
import hpcstencil as hs

first = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)) == 0
sim = hs.Simulation.from_toml("input.toml")
fine = hs.Simulation.from_toml("input.toml", **{"numerics.precision": "float64", "grid.shape": [31, 23]})
f = sim.function(4)
start = {name: array.values for name, array in sim.local.data_vars.items()}
for _ in range(3):
    sim.step(4)
    fine.step(2)
import jax
steps = []

@sim.on(every_steps=30)
def look(here):
    whole = here.state
    assert (whole is not None) == first
    steps.append(here.steps)

for here in sim.every(3.0):
    here.local
assert steps == [30, 60, 90, 120], steps
end = f(f(f(start)))
other = hs.Simulation.from_toml("input.toml")
other.step(12)
assert all(np.asarray(end[name]).tobytes() == other.local[name].values.tobytes() for name in start)
changed = {**start, "u": 0.9 * start["u"]}
together = jax.jit(lambda a, b: (f(a), f(b)))(start, changed)
mapped = jax.jit(jax.vmap(lambda scale: f({**start, "u": scale * start["u"]})["v"]))(np.float32([1.0, 0.9]))
for n, single in enumerate((f(start), f(changed))):
    assert np.asarray(together[n]["u"]).tobytes() == np.asarray(single["u"]).tobytes()
    assert np.asarray(mapped[n]).tobytes() == np.asarray(single["v"]).tobytes()
other.step()
other["u"] = lambda x, y: np.cos(x) * y
v = other.local["v"].values
other.local["v"] = 2 * v
assert (other.local["v"].values == 2 * v).all()
for wrong in (np.zeros(3), "q"):
    try:
        other["u"] = wrong
    except hs.InputError as error:
        assert str(error).startswith('sim["u"]: ')
    else:
        raise AssertionError("nothing was refused")
u = other["u"]
with hs.Simulation.from_toml("input.toml") as whole:
    whole.run(output=os.environ["WRITTEN"])
state = sim.state
if first:
    x, y = np.meshgrid(u.x, u.y, indexing="ij")
    assert (u.values == (np.cos(x) * y).astype(np.float32)).all()
    with hs.open(os.environ["WRITTEN"]) as file:
        for name in ("u", "v"):
            assert state[name].values.tobytes() == file[name][-1].values.tobytes()
    print(sim.steps, fine.steps, "done")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    return tmp_path


def test_scripts_have_the_bits_of_the_command_on_any_number_of_processes(folder):
    hpcstencil(0, "run", "input.toml", "--quiet", folder=folder)
    for processes in (0, 2, 3):
        told = python(folder, SCRIPT, processes, WRITTEN=f"on{processes}.h5")
        assert told.stdout.split() == ["120", "6", "done"]
        assert_same(folder / "run.h5", folder / f"on{processes}.h5")
    with h5py.File(folder / "run.h5") as one, h5py.File(folder / "on0.h5") as other:
        assert one.attrs["input_sha256"] == other.attrs["input_sha256"]


ARRAYS = """
import os
import numpy as np
import hpcstencil as hs

x = (np.arange(31)[:, None] + 0.5) / 10
y = (np.arange(23)[None] + 0.5) / 10
tables = {
    "grid": {"shape": [31, 23], "upper": [3.1, 2.3]},
    "equation": {"name": "acoustic", "c": 1 + 0.3 * np.sin(x) * y, "source": {"series": np.hanning(20), "dt": 0.02}},
    "initial": {"p": np.exp(-4 * ((x - 1) ** 2 + (y - 1) ** 2)), "q": lambda x, y: x * y}, "boundary": {"y": "open"},
    "time": {"end": 0.4, "cfl": 0.4},
}
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
with hs.Simulation(tables) as sim:
    sim.run(output=os.environ["WRITTEN"])
if "OMPI_COMM_WORLD_SIZE" in os.environ:
    other = {"equation": {**tables["equation"], "c": tables["equation"]["c"] + (rank == 1)}}
    for changed in other, {"initial": {"p": np.full((31, 23), rank == 1)}}, {"initial": tables["initial"] if rank else {}}:
        try:
            hs.Simulation({**tables, **changed})
        except hs.InputError as error:
            os.write(1, f"{error}\\n".encode())
"""


def test_arrays_of_a_script_give_the_same_bits_on_any_number_of_processes(folder):
    for processes in (0, 3):
        told = python(folder, ARRAYS, processes, WRITTEN=f"on{processes}.h5")
        said = sorted(told.stdout.splitlines())
        sentence = "expected the array that rank 0 has, but got another; give every process the same whole array"
        keys = ("equation.c", "initial.p", "initial.p")
        assert said == [f"rank 1: {key}: {sentence}" for key in keys for _ in range(processes)]
    first, other = (contents(folder / f"on{processes}.h5")[0] for processes in (0, 3))
    for name in ("p", "q", "time", "step"):
        assert first[name].tobytes() == other[name].tobytes(), name


IMPATIENT = """
    from hpcstencil.runtime import watchdog
    said = "; import hpcstencil.runtime.monitor_node as node; node.ABANDONED = 2.0, 4.0; main()"
    watchdog.MONITOR = watchdog.MONITOR.replace("; main()", said)
    """


@pytest.mark.parametrize("call, status, words", [
    ("sys.exit(0)", 4, "the program has ended on rank 1; others may be waiting for it"),
    ("sim.step(3)", 2, "expected the same call on all processes"),
    ("sim.run_until(1.5)", 2, "expected the same call on all processes"),
])  # fmt: skip
def test_a_rank_that_makes_other_calls_ends_all(folder, call, status, words):
    script = f"""
    import os, sys
    import hpcstencil as hs{IMPATIENT}
    sim = hs.Simulation.from_toml("input.toml")
    sim.step(2)
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        {call}
    sim.run()
    """
    assert words in python(folder, script, 2, status).stderr
    script = script.replace("sim.run()", "sim.step(2)")
    if "step" in call:
        words = "step: expected the same value on all processes, but got 2 to 3"
        assert words in python(folder, script.replace("    sim.step(2)\n    if", "    if"), 2, status).stderr


@pytest.mark.parametrize("call", [
    "sim.tangent({'equation.c': 1.0 + rank})",
    "sim.tangent({'equation.c': 1.0}) if rank else sim.value_and_gradient()",
    "sim.run(output=f'run{rank}.h5')",
    "sim.on(every_steps=1 + rank)",
    "sim.__setitem__('u', 'x' if rank else '2*x')",
    "sim.__setitem__('u', float(rank))",
])  # fmt: skip
def test_different_arguments_on_ranks_are_refused(folder, call):
    script = f"""
    import os
    import hpcstencil as hs
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    sim = hs.Simulation({{"grid": {{"shape": [20]}}, "equation": {{"name": "wave"}}, "initial": {{"u": "sin(x)"}},
        "time": {{"end": 1.0, "dt": 0.1}}, "objective": {{"J": "integral(u**2)"}}, "gradient": {{"of": ["equation.c"]}}}})
    {call}
    """
    words = "call" if "value_and_gradient" in call else "arguments"
    assert f"expected the same {words} on all processes" in python(folder, script, 2, 2).stderr


def test_an_error_on_one_rank_is_raised_on_all_and_leaves_them_in_step(folder):
    script = """
    import os
    import hpcstencil as hs
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    sim = hs.Simulation.from_toml("input.toml")
    for call in (
        lambda: sim.step(-1 if rank else 1),
        lambda: sim.step(1 if rank else "two"),
        lambda: sim.run_until(float("nan") if rank else 0.5),
        lambda: sim.every(0.0 if rank else 1.0),
        lambda: sim.on(every_steps=0 if rank else 1),
        lambda: sim.__setitem__("w" if rank else "u", 0.0),
        lambda: sim.local.__setitem__(None if rank else "u", 0.0),
        lambda: sim["q" if rank else "u"],
    ):
        try:
            call()
        except hs.InputError as error:
            os.write(1, f"{error}\\n".encode())
        sim.step(1)
    assert sim.steps == 8
    """
    said = python(folder, script, 2).stdout.splitlines()
    assert len(said) == 16
    assert all(sum(words in line for line in said) == 2 for words in (
        "rank 1: step: expected a number of steps, but got -1", "step: expected a number of steps, but got 'two'",
        "rank 1: run_until: ", "rank 1: every: ", "rank 1: on: ", "rank 1: sim['w']", "rank 1: sim.local[None]",
        "rank 1: sim['q']",
    )), said  # fmt: skip


def test_a_callback_that_raises_on_one_rank_ends_all_with_one_sentence(folder):
    script = """
    import os
    import hpcstencil as hs
    sim = hs.Simulation.from_toml("input.toml")
    @sim.on(every_steps=5)
    def look(here):
        if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            raise LookupError("nothing to see")
        here.state  # waits for the other rank
    try:
        sim.run()
    except LookupError:
        print("caught")  # by nobody: the others would wait for ever
    """
    told = python(folder, script, 2, status=1)
    said = [line for line in told.stderr.splitlines() if line.startswith("hpcstencil:")]
    assert len(said) == 1 and said[0].startswith("hpcstencil: rank 1 of 2 on ")
    assert said[0].endswith("at step 5: the callback look raised LookupError: nothing to see (script.py, line 8)")
    assert "caught" not in told.stdout and "Traceback" not in told.stderr


def test_an_exception_that_all_ranks_raise_can_be_caught_and_one_that_nobody_catches_ends_all(folder):
    script = """
    import os
    import hpcstencil as hs
    sim = hs.Simulation.from_toml("input.toml")
    @sim.on(every_steps=5)
    def stop(here):
        raise StopIteration("enough")
    try:
        sim.run()
    except StopIteration:
        os.write(1, f"caught {sim.steps}\\n".encode())  # in one piece, since both ranks print
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        sim["u"] = undefined
    sim.state
    """
    told = python(folder, script, 2, status=1)
    assert told.stdout.split() == ["caught", "5"] * 2
    assert told.stderr.count("hpcstencil: rank 1 of 2") == 1 and told.stderr.count("NameError: name 'undefined'") == 1


def test_jax_may_be_imported_before_as_in_a_notebook(folder):
    script = """
    import code, os, sys
    before = dict(os.environ)
    import hpcstencil as hs
    assert dict(os.environ) == before and not {"jax", "numpy", "mpi4py"} & set(sys.modules)
    kernel = code.InteractiveInterpreter({"hs": hs})
    for cell in (
        "import jax, jax.numpy as jnp",
        "hs.configure(devices=2, platform='cpu')",
        "two = hs.Simulation.from_toml('input.toml')",
        "one = hs.Simulation.from_toml('input.toml', **{'decomposition.devices': 1})",
        "two.run(); one.run()",
        "print(len(jax.devices()), jnp.ones(3, float).dtype, two.state.identical(one.state))",
    ):
        kernel.runsource(cell)
    """
    told = python(folder, script)
    assert told.stdout.split() == ["2", "float64", "True"], told.stderr


@pytest.mark.parametrize(
    "begun, lack",
    [
        ("jax.numpy.ones(3)", "without 64-bit types"),
        ("jax.config.update('jax_enable_x64', True); jax.devices()", "without --xla_cpu_max_isa=AVX in XLA_FLAGS"),
    ],
)
def test_a_jax_that_has_started_with_other_settings_is_refused(folder, begun, lack):
    script = f"""
    import jax
    import hpcstencil as hs
    {begun}
    try:
        hs.Simulation.from_toml("input.toml")
    except hs.EnvironmentProblem as error:
        print(error)
    """
    if "AVX" in lack and os.uname().machine != "x86_64":
        pytest.skip("only x86 processors need that flag")
    said = python(folder, script).stdout
    assert said.startswith(f"jax was started before hpcstencil, {lack}") and said.count("\n") == 1
    assert "make the first hs.Simulation, or call hs.configure(), before the first computation with jax" in said


def test_a_rank_that_waits_for_the_others_says_so(folder):
    late = """
import time
import hpcstencil as hs
from hpcstencil.python import process_state
process_state.WAIT = 0.5
sim = hs.Simulation.from_toml("input.toml")
time.sleep(2 * (sim["u"] is None))
sim.state
"""
    told = python(folder, late, 2)
    line = "hpcstencil: rank 0 has waited 0.5 s in sim.state for other ranks; all ranks must call it"
    assert sum(said.startswith(line) for said in told.stderr.splitlines()) == 1
