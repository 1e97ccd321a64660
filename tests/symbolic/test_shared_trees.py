"""Trees share their parts: what is done with them takes a time that grows with the number of parts, not with their uses."""

from hpcstencil.backends.native.shared_results import computed_alone
from hpcstencil.symbolic.expressions import Constant, Derivative, Field, Node, Pointwise, as_text

DEPTH = 80  # 2**80 uses of the innermost part


def doubled(tree: Node, depth: int = DEPTH) -> Node:
    for _ in range(depth):
        tree = Pointwise("sqrt", (tree * tree,))
    return tree


def test_equal_trees_are_equal():
    one, other = doubled(Field("u")), doubled(Field("u"))
    assert one == other and {one: 1}[other] == 1


def test_different_trees_are_not_equal():
    u = Field("u")
    assert doubled(u) != doubled(Field("v")) and doubled(u) != doubled(u, DEPTH - 1) and doubled(u) != "a text"
    assert Pointwise("add", (u, Constant(1.0))) != Pointwise("add", (Constant(1.0), u))
    assert Derivative(u, (2, 0)) != Derivative(u, (0, 2)) and Pointwise("sin", (u,)) != Pointwise("cos", (u,))


def test_a_text_has_a_line_for_each_part():
    text = as_text([doubled(Field("u")), doubled(Field("u"))])
    assert len(text.splitlines()) == 1 + 2 * DEPTH + 2 and text.splitlines()[-1] == text.splitlines()[-2]
    assert text != as_text([doubled(Field("v"))] * 2)


def test_a_part_is_looked_at_once():
    found = list(computed_alone(Pointwise("sin", (doubled(Derivative(Field("u"), (2, 0))),))))
    assert len(found) == 2 + 2 * DEPTH  # the derivative and the sine too
