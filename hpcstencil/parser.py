"""Text to tree: the expression language of the input file, read with Python's `ast` and never evaluated as Python."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from hpcstencil.derivatives import Space
from hpcstencil.errors import InputError
from hpcstencil.expressions import (
    FUNCTIONS,
    REDUCTIONS,
    Constant,
    Coordinate,
    Node,
    Noise,
    Pointwise,
    Reduction,
    Time,
    children,
)
from hpcstencil.grid import AXES

PI = 3.141592653589793
LONGEST = 10_000  # characters
DEEPEST = 200  # nested nodes

BINARY = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power"}
COMPARISON = {
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal",
    ast.Eq: "equal", ast.NotEq: "not_equal",
}  # fmt: skip
COMPARED = frozenset(COMPARISON.values())


@dataclass(frozen=True)
class Scope:
    """What an expression may use.

    ``names`` maps each field and parameter to its node. ``time``, ``operators``, ``noise`` and ``reductions`` allow `t`,
    the differential operators, noise() and integral() and its kin. ``seed`` is the run's own seed, as `seed`.
    """

    ndim: int
    names: Mapping[str, Node] = field(default_factory=dict)
    time: bool = True
    operators: bool = False
    noise: bool = False
    reductions: bool = False

    def symbols(self) -> dict[str, Node]:
        """Every bare name that may be used."""
        known: dict[str, Node] = {AXES[axis]: Coordinate(axis) for axis in range(self.ndim)}
        known["pi"] = Constant(PI)
        if self.time:
            known["t"] = Time()
        return {**known, **self.names}

    def calls(self) -> dict[str, tuple[Callable[..., Node], int, int]]:
        """Every function that may be called: (how its node is made, least and most number of arguments)."""
        known: dict[str, tuple[Callable[..., Node], int, int]] = {
            name: ((lambda *a, name=name: Pointwise(name, a)), count, count) for name, count in FUNCTIONS.items()
        }
        if self.operators:
            known.update(Space(self.ndim).operators())  # type: ignore[arg-type]
        if self.reductions:
            known.update({name: ((lambda a, name=name: Reduction(name, a)), 1, 1) for name in REDUCTIONS})
        if self.noise:
            known["noise"] = (_noise, 1, 2)
        return known


def _noise(*arguments: Node) -> Node:
    whole = [int(a.value) for a in arguments if isinstance(a, Constant) and 0 <= a.value < 2**32 and a.value % 1 == 0]
    if len(whole) < len(arguments):
        raise ValueError("noise() expects whole numbers from 0 to 2**32 - 1")
    return Noise(*whole)


def parse(text: str, scope: Scope, key: str) -> Node:
    """The tree of an expression.

    ``key`` is where the text stands in the input file, for the error. Raises InputError, with a caret under the place,
    for syntax errors, unknown names and functions, wrong argument counts and anything that is not an expression of the
    contract's language.
    """
    return _Parser(text, scope, key).tree()


class _Parser:
    """One text being parsed; carries the text and the key for error messages."""

    def __init__(self, text: str, scope: Scope, key: str) -> None:
        self.text, self.key = text, key
        self.symbols, self.calls = scope.symbols(), scope.calls()

    def tree(self) -> Node:
        if len(self.text) > LONGEST:
            raise InputError(
                f"{self.key}: the expression has {len(self.text)} characters, at most {LONGEST} are allowed"
            )
        try:
            parsed = ast.parse(self.text.strip(), mode="eval")
        except SyntaxError as error:
            self.fail((error.offset or 1) - 1, f"the expression cannot be read ({error.msg})")
        except (ValueError, RecursionError, MemoryError):
            self.fail(0, "the expression cannot be read: it is nested too deeply or holds a character that is not text")
        return self.convert(parsed.body, 0)

    def fail(self, column: int, what: str) -> NoReturn:
        text = self.text.strip().replace("\n", " ")
        raise InputError(f"{self.key}: {what}\n  {text}\n  {' ' * column}^")

    def convert(self, part: ast.expr, depth: int) -> Node:
        if depth > DEEPEST:
            self.fail(part.col_offset, f"the expression is nested more than {DEEPEST} deep")
        down = depth + 1
        match part:
            case ast.Constant(value=bool() | int() | float()):
                return Constant(self.number(part))
            case ast.Name(id=name):
                return self.symbol(part, name)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()) as number):
                return Constant(-self.number(number))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.convert(operand, down)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.convert(operand, down)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in BINARY:
                return Pointwise(BINARY[type(operator)], (self.convert(left, down), self.convert(right, down)))
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISON:
                return Pointwise(COMPARISON[type(operator)], (self.convert(left, down), self.convert(right, down)))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self.call(part, name, arguments, down)
        self.fail(part.col_offset, self.foreign(part))

    def number(self, part: ast.Constant) -> float:
        try:
            return float(part.value)  # type: ignore[arg-type]
        except OverflowError:
            self.fail(part.col_offset, "this number is too large")

    def foreign(self, part: ast.expr) -> str:
        """Why a piece of Python is not part of the language."""
        match part:
            case ast.Compare():
                return "comparisons cannot be chained: write (a < b)*(b < c)"
            case ast.BoolOp() | ast.UnaryOp():
                return "'and', 'or' and 'not' are not part of the language: multiply comparisons, or use where()"
            case ast.BinOp():
                return "only the operators + - * / ** are part of the language"
            case ast.Call():
                return "only plain calls such as laplacian(u) are part of the language"
        return "this is not part of the expression language (numbers, names, + - * / **, comparisons and functions)"

    def symbol(self, part: ast.Name, name: str) -> Node:
        if name in self.symbols:
            return self.symbols[name]
        if name in self.calls:
            self.fail(part.col_offset, f"'{name}' is a function: write {name}(...)")
        self.fail(part.col_offset, f"unknown name '{name}'" + self.suggestion(name, self.symbols))

    def call(self, part: ast.Call, name: str, arguments: list[ast.expr], depth: int) -> Node:
        if name not in self.calls:
            if name in self.symbols:
                self.fail(part.col_offset, f"'{name}' is not a function; write {name}*(...) to multiply")
            self.fail(part.col_offset, f"unknown function '{name}'" + self.suggestion(name, self.calls))
        make, least, most = self.calls[name]
        if not least <= len(arguments) <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            self.fail(part.col_offset, f"{name}() takes {expected} argument(s) here, not {len(arguments)}")
        try:
            return make(*(self.convert(argument, depth) for argument in arguments))
        except ValueError as error:
            self.fail(part.col_offset, str(error))

    @staticmethod
    def suggestion(name: str, known: Mapping[str, object]) -> str:
        near = difflib.get_close_matches(name, known, n=1)
        return f": did you mean '{near[0]}'?" if near else f"; known here: {', '.join(sorted(known))}"


def depth(tree: Node) -> int:
    """Levels of a tree."""
    return 1 + max((depth(child) for child in children(tree)), default=0)
