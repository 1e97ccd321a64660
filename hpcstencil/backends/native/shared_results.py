"""Results that two parts of a step share are stored between them, and those that none reads are dropped.

A step that reverses steps of an equation evaluates right-hand sides twice: to take the steps forwards, and within their
derivatives. The derivative of c² (∇²p + s) with respect to c is 2 c λ (∇²p + s). If the first part stores ∇²p + s, the second
one loads it, and does not read the neighbours of p.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpcstencil.backends.native.pass_statements import Scope, flattened
from hpcstencil.backends.native.passes import Array, Part, StepPlan, Trials, value_of
from hpcstencil.symbolic.expressions import OPERATORS, Convolution, Derivative, Halfway, Neighbour, Node

MERGED = (Derivative, Halfway, Convolution)  # operators whose stencils are merged with those of other terms of a sum
FEWEST = 8  # statements per cell that must be saved by loading a result instead of computing it again


def without_unread(plan: StepPlan, trials: Trials) -> StepPlan:
    """Return the plan without results that no later part, boundary condition or step reads."""
    read = {*plan.ends, *plan.injected, *plan.beside_faces}
    kept: dict[int, Part] = {}
    for number, part in reversed([*enumerate(plan.parts)]):
        outputs = {array: write for array, write in part.outputs.items() if array in read}
        if outputs:
            kept[number] = part if len(outputs) == len(part.outputs) else replace(part, outputs=outputs)
            read |= trials.of([kept[number]]).reads.reach.keys()
    parts = tuple(kept[number] for number in sorted(kept))
    before = {array: sum(number < n for number in kept) for array, n in plan.injected.items()}
    return replace(plan, parts=parts, injected=before)


def with_shared_results(plan: StepPlan, trials: Trials) -> StepPlan:
    """Return the plan with further arrays, which hold results that later parts would compute again."""
    parts, arrays = list(plan.parts), list(plan.arrays)
    computing: dict[Node, list[int]] = {}  # the parts so far that compute a tree, by tree
    for number, part in enumerate(plan.parts):
        trees = dict.fromkeys(
            tree for array, root in part.trees.items() if array in part.outputs for tree in computed_alone(root)
        )
        for tree in trees:
            alike = (n for n in computing.get(tree, ()) if has_same_value(plan, tree, plan.parts[n].scope, part.scope))
            earlier = next(alike, None)
            if earlier is None:
                continue
            later, number_of_array = parts[number], len(arrays)
            held = {**later.scope.held, tree: number_of_array}
            loading = replace(later, scope=replace(later.scope, held=held))
            if is_cheaper(trials, loading, later):
                first = parts[earlier]
                parts[earlier] = replace(first, outputs={**first.outputs, number_of_array: value_of(tree)})
                parts[number] = loading
                arrays.append(Array(None, first.scope.node))
        for tree in trees:
            computing.setdefault(tree, []).append(number)
    return replace(plan, parts=tuple(parts), arrays=tuple(arrays))


def has_same_value(plan: StepPlan, tree: Node, here: Scope, there: Scope) -> bool:
    """Return whether a tree has the same value in two scopes, down to the last bit."""
    if here.node != there.node or here.deep or there.deep:  # sums load deep arrays as a whole
        return False
    arrays = [(here.held[part], there.held[part]) for part in tree.field_nodes]
    return all(a == b and a not in plan.injected for a, b in arrays)


def is_cheaper(trials: Trials, loading: Part, computing: Part) -> bool:
    """Return whether ``loading`` a result takes clearly fewer statements than ``computing`` it, and reads no more arrays."""
    new, old = trials.of([loading]), trials.of([computing])
    return len(old.lines) - len(new.lines) >= FEWEST and len(new.reads.reach) <= len(old.reads.reach)


def computed_alone(root: Node) -> Iterator[Node]:
    """Yield the trees below a right-hand side that read neighbours and are computed as they are, the largest first.

    Others are merged with terms of a sum, or computed in neighbouring cells.
    """
    found: dict[Node, None] = {}
    merged = set[Node]()

    def merge(tree: Node) -> None:
        pending = [tree]
        while pending:
            part = pending.pop()
            if part not in merged:
                merged.add(part)
                pending.extend(part.children)

    def visit_terms(tree: Node) -> None:
        for _, _, term in flattened(tree):
            if isinstance(term, MERGED):
                merge(term)
            else:
                visit(term)

    def visit(tree: Node) -> None:
        if tree in found:  # trees share parts, which would be visited once per use
            return
        found[tree] = None
        if isinstance(tree, OPERATORS):
            for child in tree.children:
                merge(child)
        elif flattened(tree) == [((), 1.0, tree)]:
            for child in tree.children:
                visit(child)
        else:
            visit_terms(tree)

    visit_terms(root)
    for tree in found:
        if tree not in merged and not isinstance(tree, Neighbour) and not tree.kinds.isdisjoint(OPERATORS):
            yield tree
