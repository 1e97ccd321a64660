"""sim.function: pure steps under jit and vmap equal those of the simulation, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hpcstencil as hs

PATTERN = {
    "grid": {"shape": [13, 11]}, "equation": {"name": "gray_scott", "D_u": 0.1, "D_v": 0.05},
    "initial": {"u": "1 - 0.5*exp(-(x - 6)**2)", "v": "0.25*exp(-(y - 5)**2) + 0.01*noise(3)"},
    "boundary": {"y": {"lower": {"dirichlet": "sin(t)"}, "upper": {"neumann": 0.0}}}, "time": {"end": 50.0, "dt": 0.5},
}  # fmt: skip
WAYS = {
    "native": {"numerics": {"kernel": "native", "precision": "float64"}},
    "shift": {"numerics": {"kernel": "shift", "integrator": "euler"}},
    "two devices": {"numerics": {"kernel": "shift", "integrator": "euler"}, "decomposition": {"devices": 2}},
    "a multistep method": {"numerics": {"kernel": "shift", "integrator": "ab2"}},
    "native, two devices": {"numerics": {"kernel": "native"}, "decomposition": {"devices": 2}},
}
MEMBERS = {"equation.F": [0.03, 0.04, 0.05], "initial.u": ["x/13", "1 - y/11", "0.5"]}
ENSEMBLES = {
    "native": {"numerics": {"kernel": "native"}},
    "two devices": {"numerics": {"kernel": "native"}, "decomposition": {"devices": 2}},
    "a multistep method": {"numerics": {"kernel": "shift", "integrator": "ab2"}},
}


def assert_same(state, fields):
    for name, array in fields.items():
        assert np.asarray(state[name]).tobytes() == np.asarray(array).tobytes(), name


@pytest.mark.parametrize("way", WAYS)
def test_a_function_has_the_bits_of_the_simulation(way):
    with hs.Simulation({**PATTERN, **WAYS[way]}) as sim:
        first = {name: array.values for name, array in sim.state.data_vars.items()}
        f = sim.function(6)
        assert sim.steps == 0 and (f.steps, f.kernel) == (6, sim.kernel.split()[0])
        once = f(first)
        twice = jax.jit(lambda fields: f(f(fields)))(first)
        again = f(once)  # which the calls above have not changed
        sim.step(6)
        assert_same(once, sim.state)
        sim.step(6)
        assert_same(twice, sim.state)
        assert_same(again, sim.state)
        assert int(twice.clock.step) == 12 and float(twice.clock.time) == sim.time


@pytest.mark.parametrize("way", ENSEMBLES)
def test_an_ensemble_has_the_members_first(way):
    with hs.Simulation({**PATTERN, **ENSEMBLES[way], "ensemble": MEMBERS}) as sim:
        first, f = sim.state, sim.function(6)
        twice = jax.jit(lambda fields: f(f(fields)))({name: first[name].values for name in sim})
        assert twice["u"].shape == (3, 13, 11)
        assert_same(f(first), f(first, {"F": jnp.array([0.03, 0.04, 0.05])}).fields)
        mapped = jax.vmap(lambda rate: f(first, {"F": rate})["v"])(jnp.array([0.03, 0.05]))
        for index, rate in enumerate((0.03, 0.05)):
            assert np.asarray(mapped[index]).tobytes() == np.asarray(f(first, {"F": rate})["v"]).tobytes()
            own = f(first)["v"][2 * index]
            assert np.asarray(mapped[index][2 * index]).tobytes() == np.asarray(own).tobytes()
        sim.step(12)
        assert_same(twice, sim.state)


def test_members_may_take_steps_of_their_own():
    heat = {"grid": {"shape": [12]}, "equation": {"name": "heat"}, "initial": {"u": "sin(x)"}, "time": {"end": 9.0}}
    rates = [0.5, 2.0]
    with hs.Simulation({**heat, "ensemble": {"equation.D": rates}}) as sim:
        end = sim.function(4)({"u": sim.state["u"][0].values})
    for member, rate in enumerate(rates):
        with hs.Simulation({**heat, "equation": {"name": "heat", "D": rate}}) as sim:
            sim.step(4)
            assert np.asarray(end["u"][member]).tobytes() == sim["u"].values.tobytes()
            assert float(end.clock.time[member]) == sim.time


def test_fields_on_faces_may_have_those_at_the_upper_boundary():
    waves = {"grid": {"shape": [12, 9]}, "equation": {"name": "maxwell"}, "initial": {"Ez": "exp(-(x - 5)**2)"}}
    walls = {"boundary": {"x": {"dirichlet": 0.0}, "y": {"dirichlet": 0.0}}, "time": {"end": 9.0, "dt": 0.1}}
    with hs.Simulation({**waves, **walls}) as sim:
        f = sim.function(4)
        twice = f(f(sim.state))
        sim.step(8)
        assert sim["Ez"].shape == (13, 10)
        assert_same(twice, {name: sim[name].values[:12, :9] for name in sim})


@pytest.mark.parametrize("way", ["native", "two devices"])
def test_several_calls_in_one_compiled_function(way):
    """XLA may start them in any order."""
    with hs.Simulation({**PATTERN, **ENSEMBLES[way], "grid": {"shape": [64, 60]}}) as sim:
        f, g = sim.function(20), sim.function(7)
        first = {name: jnp.asarray(sim[name].values) for name in sim}
        starts = [{**first, "u": first["u"] * (1 - 0.1 * k)} for k in range(6)]
        together = jax.jit(lambda states: [(f if k % 2 else g)(state) for k, state in enumerate(states)])
        for _ in range(10):
            ends = together(starts)
        for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
            assert_same(end, {name: np.asarray(array) for name, array in (f if k % 2 else g)(start).fields.items()})


def test_parameter_fields_are_arguments_too(tmp_path):
    rng = np.random.default_rng(1)
    fields = rng.random((2, 13, 11)).astype(np.float32)
    np.save(tmp_path / "D.npy", fields[0])
    equation = {"name": "heat", "D": f"{tmp_path}/D.npy"}
    tables = {"grid": {"shape": [13, 11]}, "equation": equation, "initial": {"u": "noise(1)"}}
    tables |= {"time": {"end": 9.0, "dt": 0.1}, "mask": {"solid": "x < 3"}}
    ends = []
    for field in fields:
        np.save(tmp_path / "D.npy", field)
        with hs.Simulation(tables) as sim:
            sim.step(10)
            ends.append(sim["u"].values)
    with hs.Simulation(tables) as sim:
        f, first = sim.function(5), {"u": sim["u"].values}
        mapped = jax.vmap(lambda D: f(f(first, {"D": D}), {"D": D})["u"])(fields)
        assert np.asarray(mapped).tobytes() == np.array(ends).tobytes()
        assert_same(f(f(first)), {"u": ends[1]})
        assert (f({"u": np.ones((13, 11))})["u"][:3] == 0).all()
        with pytest.raises(hs.InputError, match=r'parameters\["D"\]: expected the shape \(13, 11\)'):
            f(first, {"D": 1.0})


@pytest.mark.parametrize("way", ["native", "two devices"])
def test_mapped_calls_are_single_calls(way):
    """Over initial states, over parameters, and over both."""
    with hs.Simulation({**PATTERN, **WAYS[way]}) as sim:
        first = {name: jnp.asarray(array.values) for name, array in sim.state.data_vars.items()}
        f, rates, scales = sim.function(5), jnp.array([0.03, 0.04]), jnp.array([1.0, 0.5])

        def one(scale, rate):
            return f({**first, "u": first["u"] * scale.astype(first["u"].dtype)}, {"F": rate})["v"]

        both = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(scales, rates)
        for i, scale in enumerate(scales):
            for j, rate in enumerate(rates):
                assert np.asarray(both[i, j]).tobytes() == np.asarray(one(scale, rate)).tobytes()
        assert len({np.asarray(part).tobytes() for part in both.reshape(4, -1)}) == 4


REFUSED = {
    "a tolerance": (
        {"time": {"end": 1.0, "tolerance": 1e-3}},
        r"the step follows the solution \(tolerance\); give time.dt",
    ),
}


def test_arrays_of_xarray_are_a_state_too():
    with hs.Simulation({**PATTERN, "numerics": {"kernel": "shift"}}) as sim:
        f = sim.function(2)
        expected = f({name: sim[name].values for name in sim})
        for state in (sim.state, {name: sim[name].T for name in sim}):
            for name, array in f(state).fields.items():
                assert np.array_equal(array, expected[name])


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_available_yet_says_so(case):
    changes, sentence = REFUSED[case]
    expected = pytest.raises(hs.InputError, match=f"sim.function: not available yet .*{sentence}")
    with hs.Simulation({**PATTERN, "numerics": {"kernel": "shift"}, **changes}) as sim, expected:
        sim.function(2)


def test_arrays_of_the_other_byte_order_are_a_state_too():
    with hs.Simulation({**PATTERN, "numerics": {"kernel": "shift"}}) as sim:
        f, fields = sim.function(2), {name: sim.state[name].values for name in ("u", "v")}
        once = f(fields)
        swapped = f({name: array.astype(array.dtype.newbyteorder("S")) for name, array in fields.items()})
        assert all(np.array_equal(once[name], swapped[name]) for name in fields)


def test_what_is_wrong_is_one_sentence():
    equation = {"name": "gray_scott", "D_u": "0.1 + 0.001*x"}
    with hs.Simulation({**PATTERN, "equation": equation, "numerics": {"kernel": "shift"}}) as sim:
        f, fields = sim.function(2), {"u": np.ones((13, 11)), "v": np.ones((13, 11))}
        for state, parameters, sentence in (
            ({"u": fields["u"]}, {}, "state: expected all fields, but v is missing"),
            ({**fields, "w": fields["u"]}, {}, 'state: unknown field "w"'),
            ({**fields, "u": np.ones(3)}, {}, r'state\["u"\]: expected the shape \(13, 11\)'),
            (fields["u"], {}, "state: expected a dict of fields or an earlier result, but got ndarray"),
            (fields, {"F": np.ones(3)}, r'parameters\["F"\]: expected a number, but got the shape \(3,\); map over it'),
            (fields, {"F": "1"}, r'parameters\["F"\]: expected real numbers, but got str'),
            ({**fields, "u": fields["u"].astype(object)}, {}, r'state\["u"\]: expected real numbers'),
            (fields, {"G": 1.0}, 'parameters: unknown parameter "G"'),
            (fields, {"D_u": 1.0}, r'parameters\["D_u"\]: expected a number or a field .* an expression'),
        ):
            with pytest.raises(hs.InputError, match=sentence):
                f(state, parameters)
        with pytest.raises(hs.InputError, match="function: expected a number of steps, but got 0"):
            sim.function(0)
    expected = pytest.raises(hs.InputError, match="parameters: not available yet with time.cfl")
    with hs.Simulation({**PATTERN, "numerics": {"kernel": "shift"}, "time": {"end": 1.0, "cfl": 0.5}}) as sim, expected:
        sim.function(2)(fields, {"F": 0.03})
