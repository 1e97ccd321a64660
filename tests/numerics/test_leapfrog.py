"""The stages of leapfrog, and when they evaluate the right-hand side."""

from hpcstencil.numerics.integrators import Stage, leapfrog


def test_without_fields_beside_the_groups_it_is_drift_kick_drift():
    stages = (
        Stage(((0, 1.0),), ((0, 0.5),), group=0),
        Stage(((1, 1.0),), ((1, 1.0),), group=1),
        Stage(((2, 1.0),), ((2, 0.5),), group=0),
    )
    assert leapfrog().stages == stages and leapfrog().nodes == (0.0, 0.5, 1.0, 1.0)


def test_fields_beside_a_group_are_evaluated_at_the_time_of_the_group_at_rest():
    """At t, t + dt/2 and t + dt, so boundary values are needed at no other times."""
    made = leapfrog((1, 2))
    assert [stage.group for stage in made.stages] == [2, 0, 2, 3, 5, 1, 3, 5, 2, 0, 2]
    assert made.nodes == (0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert made.evaluations == 2 + 3 + 2
