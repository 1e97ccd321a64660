"""`hpcstencil equations`: what there is to name in [equation]."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from hpcstencil.cli.equations import equations
from hpcstencil.equations import EQUATIONS
from hpcstencil.validation.errors import InputError


def told(*arguments):
    result = CliRunner().invoke(equations, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_every_equation_has_a_line():
    lines = told().splitlines()
    assert [line.split()[0] for line in lines] == [*EQUATIONS, "custom"]
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize("name", EQUATIONS)
def test_fields_and_parameters_are_named(name):
    text = told(name)
    for parameter, default in EQUATIONS[name].parameters.items():
        assert f"{parameter} = {default}" in text
    for field in EQUATIONS[name]().fields(2):
        assert field in text.partition("\nfields")[2]


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError, match='did you mean "heat"'):
        CliRunner().invoke(equations, ["heta"], catch_exceptions=False)


def test_it_answers_without_jax_and_mpi():
    code = (
        "import sys\nfrom hpcstencil.cli import cli\ncli(['equations'], standalone_mode=False)\n"
        "assert not {'jax', 'mpi4py', 'mpi4jax', 'h5py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
