"""`hpcstencil verify`, as a user starts it."""

import pytest
from commands import hpcstencil

pytestmark = pytest.mark.e2e
INPUT = """
[grid]
shape = [24]
[equation]
name = "gray_scott"
[initial]
u = "1 + 0.1*noise(1)"
v = "0.2"
[time]
end = 10.0
dt = 0.1
[diagnostics]
mass = "integral(u)"
[verify]
conserved = ["mass"]
"""


def test_it_tells_and_ends_with_3_where_a_promise_is_not_kept(tmp_path):
    """On a reacting species that is declared to be conserved; all else is in order."""
    (tmp_path / "input.toml").write_text(INPUT)
    result = hpcstencil(2, "verify", "input.toml", "--devices", 2, folder=tmp_path, status=3)
    told = result.stdout
    assert told.count(": ok") == 6 and told.count("NOT MET") == 1
    assert "the same bits on 2 process(es) x 2 device(s)" in told and "observed 2.0" in told
    assert "mass                   drifts by" in told
    assert "does not keep what was promised: mass" in result.stderr
    assert (tmp_path / "input.verify.png").read_bytes().startswith(b"\x89PNG")
