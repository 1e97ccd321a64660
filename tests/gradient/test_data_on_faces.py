"""Objectives with data of fields that live on faces: against the same values as expressions, and what is refused."""

import re

import numpy as np
import pytest
from gradients import members_from

import hpcstencil as hs
from hpcstencil.gradient.verify import measured

N, M = 12, 10
X, XF = (np.arange(N) + 0.5) / 10, np.arange(N + 1) / 10
Y, YF = (np.arange(M) + 0.5) / 10, np.arange(M) / 10
GIVEN = {
    "grid": {"shape": [N, M], "upper": [1.2, 1.0]},
    "equation": {"name": "shallow_water"},
    "initial": {"h": "1 + 0.1*exp(-20*((x - 0.5)**2 + (y - 0.4)**2))"},
    "boundary": {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": 0.0}}},
    "numerics": {"precision": "float64"},
    "time": {"end": 0.05, "dt": 0.005},
    "gradient": {"of": ["initial.h", "initial.u", "initial.v"]},
}
DATA = {
    "u": np.sin(XF)[:, None] * Y,  # with one value more than cells, on the upper wall
    "v": np.cos(X)[:, None] + YF,
    "h": X[:, None] * Y**2,
}


def found(objective, kernel="native"):
    with hs.Simulation({**GIVEN, "numerics": {**GIVEN["numerics"], "kernel": kernel}, "objective": objective}) as sim:
        return sim.value_and_gradient()


@pytest.mark.parametrize("kernel", ["native", pytest.param("shift", marks=pytest.mark.long)])
def test_data_have_the_gradient_of_the_same_values_as_expressions(kernel):
    text = "integral((u - {u})**2) + mean(h*{h}) + 3*integral({v}*v)"
    data = {f"of_{name}": values for name, values in DATA.items()}
    value, gradient = found({"J": text.format(u="of_u", v="of_v", h="of_h"), "data": data}, kernel)
    expected, by_expression = found({"J": text.format(u="(sin(x)*y)", v="(cos(x) + y)", h="(x*y**2)")}, kernel)
    assert value == pytest.approx(expected, rel=1e-13) != 0
    for name, array in by_expression.items():
        assert np.allclose(gradient[name], array, rtol=1e-11, atol=1e-14) and array.any(), name


def test_the_objective_is_0_for_the_run_that_recorded_the_data(tmp_path):
    path = tmp_path / "observed.h5"
    with hs.Simulation(GIVEN) as sim:
        sim.run(output=path)
    text = "integral((u - of_u)**2) + integral((v - of_v)**2) + integral((h - of_h)**2)"
    value, gradient = found({"J": text, "data": {f"of_{name}": f"{path}:{name}" for name in DATA}})
    assert value == 0 and not any(array.any() for array in gradient.values())


@pytest.mark.parametrize(("text", "data", "sentence"), [
    ("integral((u - d)**2)", DATA["h"], r"objective.data.d, used on x faces: expected .*\(13, 10\), but got \(12, 10\)"),
    ("integral((h - d)**2)", DATA["u"], r"expected .*\(12, 10\), but got \(13, 10\)"),
    ("integral((d - e)**2) + integral(u*d) + mean(h*e)", DATA["u"], "data.e: used with values at cell centres and with"),
    ("integral(u*d) + mean(h*d)", DATA["u"], "data.d: used with values on x faces and with values at cell centres; give each"),
    ("integral((h - mean_x(d))**2)", DATA["u"], "operators on data are not available yet for equations with fields on faces"),
])  # fmt: skip
def test_errors(text, data, sentence):
    with pytest.raises(hs.InputError, match=sentence):
        found({"J": text, "data": {name: data for name in ("d", "e") if re.search(rf"\b{name}\b", text)}})


def test_the_directions_of_verify_leave_the_values_on_walls():
    tables = {**GIVEN, "objective": {"J": "integral(u**2)"}}
    members, plans = members_from(tables, kernel="native", verified=True).planned(lambda _: {})
    found = measured(members, plans)
    assert found.second_order and max(found.remainders) > 1e-9, found.slopes
