"""jax.grad through sim.function is the gradient of sim.value_and_gradient()."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hpcstencil as hs

N = 12
TARGET = np.linspace(0, 1, N)
GIVEN = {
    "grid": {"shape": [N], "upper": [1.2]},
    "equation": {
        "name": "custom",
        "D": np.linspace(0.01, 0.02, N),
        "A": 0.5,
        "B": 0.1,
        "rhs": {"u": "div_grad(D, u) + A*u - u**3 + B*sin(3*t) + v", "v": "dx(u*u) - v"},
    },
    "initial": {"u": "sin(2*pi*x/1.2)", "v": "0.3*x"},
    "boundary": {"x": {"dirichlet": "0.1*t"}},
    "numerics": {"kernel": "native", "precision": "float64", "integrator": "ssprk2"},
    "time": {"end": 0.1, "dt": 0.01},
    "objective": {"misfit": "integral((u - target)**2)", "data": {"target": TARGET}},
    "gradient": {"of": ["initial.u", "equation.D", "equation.A", "initial.v"]},
}
WAYS = {
    "native": {},
    "shift": {"numerics": {**GIVEN["numerics"], "kernel": "shift", "integrator": "rk4"}},
    "leapfrog": {
        "equation": {**GIVEN["equation"], "rhs": {"u": "A*v + B*sin(3*t)", "v": "div_grad(D, u) - u**3"}},
        "numerics": {**GIVEN["numerics"], "integrator": "leapfrog"},
    },
    "rkl2": {"numerics": {**GIVEN["numerics"], "integrator": "rkl2", "stages": 4}},
    "ab2": {"numerics": {**GIVEN["numerics"], "integrator": "ab2", "epsilon": 0.1}},
    "single": {"numerics": {"kernel": "native", "integrator": "ssprk3"}},
}


def loss_of(sim, steps=10, calls=1, kept=lambda f: f):
    f = kept(sim.function(steps))

    def loss(u, A, D, v):
        state = {"u": u, "v": v}
        for _ in range(calls):
            state = f(state, {"A": A, "D": D})
        return 0.1 * ((state["u"] - TARGET) ** 2).sum()

    values = np.array(sim["u"]), 0.5, GIVEN["equation"]["D"], np.array(sim["v"])
    return loss, tuple(map(jnp.asarray, values))


@pytest.mark.parametrize("way", [
    pytest.param(way, marks=() if way in ("native", "leapfrog") else pytest.mark.long) for way in WAYS
])  # fmt: skip
def test_the_gradient_is_that_of_the_simulation(way):
    with hs.Simulation({**GIVEN, **WAYS[way]}) as sim:
        value, expected = sim.value_and_gradient()
        loss, values = loss_of(sim)
        found, gradient = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(*values)
        near = 2e-5 if way == "single" else 1e-12
        assert float(found) == pytest.approx(value, rel=near)
        for name, array in zip(("initial.u", "equation.A", "equation.D", "initial.v"), gradient, strict=True):
            difference = np.abs(np.asarray(array, np.float64) - expected[name]).max()
            assert difference <= near * np.abs(expected[name]).max(), name


def test_calls_may_be_chained_and_mapped():
    with hs.Simulation(GIVEN) as sim:
        loss, values = loss_of(sim)
        twice, _ = loss_of(sim, 5, calls=2)
        whole, parts = jax.grad(loss)(*values), jax.grad(twice)(*values)
        assert np.allclose(parts, whole, rtol=0, atol=1e-13 * np.abs(whole).max())
        again, _ = loss_of(sim, 5, calls=2, kept=jax.checkpoint)
        assert np.array_equal(jax.grad(again)(*values), parts)
        rates = jnp.array([0.4, 0.5, 0.6])
        each = jax.vmap(jax.grad(loss, 1), (None, 0, None, None))(values[0], rates, *values[2:])
        for rate, slope in zip(rates, each, strict=True):
            assert float(slope) == float(jax.grad(loss, 1)(values[0], rate, *values[2:]))
        h = 1e-6
        above, below = (float(loss(values[0], 0.6 + step, *values[2:])) for step in (h, -h))
        assert float(each[2]) == pytest.approx((above - below) / (2 * h), rel=1e-6)


def test_mapped_calls_do_not_mix_up_what_they_are_differentiated_by():
    """JAX calls the traced function of the first gradient once more in the third one."""
    with hs.Simulation({**GIVEN, **WAYS["shift"]}) as sim:
        loss, (u, A, D, v) = loss_of(sim)
        scales, starts = jnp.array([0.4, 0.6]), jnp.stack([u, 2 * u])

        def by_factor(factor):
            return jax.vmap(lambda start: loss(start, factor * A, D, v))(starts).sum()

        expected = float(A) * sum(float(jax.grad(loss, 1)(start, A, D, v)) for start in starts)
        jax.grad(lambda A: jax.vmap(lambda scale: loss(u, A, scale * D, v))(scales).sum())(0.5)
        jax.grad(lambda scales: jax.vmap(lambda scale: loss(u, A, scale * D, v))(scales).sum())(scales)
        assert float(jax.grad(by_factor)(1.0)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("way", ["native", pytest.param("ab2", marks=pytest.mark.long)])
def test_the_members_of_an_ensemble(way):
    """Shared parameters have the sums over the members, each of which is that of a single run."""
    rates, found = jnp.array([0.5, 0.3]), []
    with hs.Simulation({**GIVEN, **WAYS[way], "ensemble": {"equation.A": [0.5, 0.3]}}) as sim:
        f, start = sim.function(5), {name: jnp.asarray(sim[name].values) for name in sim}
        weights = jnp.array([1.0, 2.0])

        def loss(u, A, D, B):
            return (weights[:, None] * f({**start, "u": u}, {"A": A, "D": D, "B": B})["u"] ** 2).sum()

        whole = jax.grad(loss, (0, 1, 2, 3))(start["u"], rates, GIVEN["equation"]["D"], 0.1)
    for member, rate in enumerate((0.5, 0.3)):
        with hs.Simulation({**GIVEN, **WAYS[way], "equation": {**GIVEN["equation"], "A": rate}}) as sim:
            g = sim.function(5)

            def alone(u, A, D, B, g=g, member=member):
                state = {"u": u, "v": start["v"][member]}
                return (weights[member] * g(state, {"A": A, "D": D, "B": B})["u"] ** 2).sum()

            found.append(jax.grad(alone, (0, 1, 2, 3))(start["u"][member], rate, GIVEN["equation"]["D"], 0.1))
    assert np.array_equal(whole[0], [one[0] for one in found])
    assert np.array_equal(whole[1], [one[1] for one in found])
    for number in (2, 3):
        assert np.allclose(whole[number], found[0][number] + found[1][number], rtol=1e-14)


def test_a_layer_and_its_memory():
    """The memory of a CPML layer begins at 0 and is a part of the state."""
    given = {
        "grid": {"shape": [20], "upper": [2.0]},
        "equation": {"name": "acoustic", "c": 1.0},
        "initial": {"p": "exp(-20*(x - 1)**2)"},
        "boundary": {"x": {"cpml": {"width": 0.4, "speed": 1.0}}},
        "numerics": {"kernel": "native", "precision": "float64", "integrator": "rk4"},
        "time": {"end": 0.6, "dt": 0.03},
        "objective": {"J": "integral(p**2)"},
        "gradient": {"of": ["initial.p"]},
    }
    with hs.Simulation(given) as sim:
        f, start = sim.function(20), {name: jnp.asarray(sim[name].values) for name in sim}
        found = jax.grad(lambda p: 0.1 * (f({**start, "p": p})["p"] ** 2).sum())(start["p"])
        _, expected = sim.value_and_gradient()
        assert np.allclose(found, expected["initial.p"], rtol=0, atol=1e-12 * np.abs(found).max())


def test_what_has_no_derivative_says_so():
    def gradient_of(tables):
        with hs.Simulation(tables) as sim:
            f = sim.function(2)
            start = {name: jnp.zeros(sim.state[name].shape) for name in sim}
            return jax.grad(lambda u: f({**start, "u": u})["u"].sum())(start["u"])

    plain = {key: GIVEN[key] for key in ("grid", "initial", "boundary", "time")}
    plain["equation"] = {"name": "custom", "A": 0.1, "rhs": {"u": "A*laplacian(u) + v", "v": "u"}}
    for changes, sentence in (
        ({"decomposition": {"devices": 2}}, "derivatives are not available yet on several processes or devices"),
        ({"gradient": {"tape_precision": "half"}}, "gradient.tape_precision: jax.grad stores states instead of a tape"),
    ):
        with pytest.raises(hs.InputError, match=sentence):
            gradient_of({**plain, **changes})


@pytest.mark.parametrize("second", [lambda f: jax.grad(jax.grad(f)), jax.hessian], ids=["grad of grad", "hessian"])
def test_second_derivatives_say_what_to_use(second):
    with hs.Simulation(GIVEN) as sim:
        f, start = sim.function(2), {name: sim[name].values for name in ("u", "v")}
        with pytest.raises(hs.InputError, match="second derivatives of it are not available; use sim.hessian_product"):
            second(lambda A: f(start, {"A": A})["u"].sum())(0.5)
        with pytest.raises(hs.InputError, match="parameters: expected a dict of parameters, but got list"):
            f(start, [0.5])
