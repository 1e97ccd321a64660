"""Parser of the expression language of the input file.

Python's `ast` module parses the text, and the syntax tree is converted to an expression tree. Nothing is executed.
"""

from __future__ import annotations

import ast
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from hpcstencil.numerics.grid import AXES
from hpcstencil.symbolic.expressions import (
    FUNCTIONS,
    SUM,
    Constant,
    Coordinate,
    Node,
    Noise,
    Pointwise,
    Reduction,
    Time,
    size_and_height,
)
from hpcstencil.symbolic.operators import Space
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import listing, nearest

PI = 3.141592653589793
LONGEST = 10_000  # characters
DEEPEST = 100  # nesting depth; a sum or product counts once, however many terms it has
LARGEST = 20_000  # nodes of the tree, with a shared node counted once per use
TALLEST = 200  # levels of the tree; hashing a tree, or listing its kinds, takes Python stack frames for each level
CHAIN = 64  # a sum or product with at most this many terms is joined term by term, from left to right
SIMILAR = 0.7  # least similarity of a suggestion, so that 'point' is not suggested for 'poisson'
SHOWN = 60  # characters of an expression that an error message quotes

_SOLVE = (
    "laplacian",
    "expressions solve no equations: a field p whose time derivative is laplacian(p) - f tends to where laplacian(p) = f",
)
_CURL = ("dx", "write its components with dx, dy and dz, such as dx(v) - dy(u)")
_GRADIENT = ("dx", "write its components dx(a), dy(a), dz(a), or gradient_squared(a) for the square of its length")
_LAPLACIAN = ("laplacian", "write laplacian(a)")
_NOISE = ("noise", "write noise(1), uniform on [-1, 1); 1 is the seed")
_INVERSE = ("tan", "there are no inverses of sin, cos and tan; compute the values with NumPy, and give them as a file")
_STEP = ("where", "write a comparison, such as (x > 1), which is 1 or 0")
# Functions that users know from other languages: (function of this language, advice). The advice is given only where
# that function is allowed.
WISHES = {
    **dict.fromkeys(("poisson", "solve", "inverse", "invert", "inverse_laplacian", "laplacian_inverse"), _SOLVE),
    **dict.fromkeys(("inverse_laplace", "laplace_inverse", "inv_laplacian", "invlaplacian", "invlap"), _SOLVE),
    **dict.fromkeys(("curl", "rot", "vorticity"), _CURL),
    **dict.fromkeys(("grad", "gradient", "nabla"), _GRADIENT),
    **dict.fromkeys(("laplace", "lap", "del2", "nabla2", "delta"), _LAPLACIAN),
    **dict.fromkeys(("biharmonic", "bilaplacian", "laplacian2"), ("laplacian", "write laplacian(laplacian(a))")),
    **dict.fromkeys(("heaviside", "step"), _STEP),
    **dict.fromkeys(("asin", "acos", "atan", "atan2", "arcsin", "arccos", "arctan", "arctan2"), _INVERSE),
    "div": ("divergence", "write divergence(a, b), with one component per axis"),
    "diff": ("dx", "write dx(a), dy(a), dz(a), dxx(a) and the like"),
    "max": ("maximum", "write maximum(a, b); max(a), over the grid, is for [diagnostics]"),
    "min": ("minimum", "write minimum(a, b); min(a), over the grid, is for [diagnostics]"),
    "pow": ("exp", "write a**b"),
    "ln": ("log", "write log(a)"),
    "sum": ("integral", "write integral(a), the sum of a times the volume of a cell, or mean(a)"),
    "log10": ("log", "write log(a)/log(10)"),
    "cosh": ("exp", "write (exp(a) + exp(-a))/2"),
    "sinh": ("exp", "write (exp(a) - exp(-a))/2"),
    **dict.fromkeys(("dot", "inner"), ("dx", "write the sum of the products, such as dx(a)*dx(b) + dy(a)*dy(b)")),
    **dict.fromkeys(("rand", "random", "random_uniform", "random_normal"), _NOISE),
    **{f"d_d{axis}": (f"d{axis}", f"write d{axis}(a)") for axis in AXES},
    **{f"d2_d{axis}2": (f"d{axis}{axis}", f"write d{axis}{axis}(a)") for axis in AXES},
}
# The same for bare names.
WISHED_NAMES = {
    "e": ("exp", "write exp(1)"),
    "seed": ("noise", "set equation.seed, or write a number, as in noise(1)"),
}

# Characters that Python accepts but this language does not. '#' would start a comment, and Python normalizes some
# letters of other alphabets to ASCII letters that look alike.
FOREIGN = re.compile(r"[^ -~\t\n\r]|[#\\]")
BREAKS = re.compile(r"[\t\n\r]")
KEYWORDS = re.compile(r"\b(if|else|elif)\b")

BINARY = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power"}
COMPARISON = {
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal",
    ast.Eq: "equal", ast.NotEq: "not_equal",
}  # fmt: skip
CHAINS = ({ast.Add, ast.Sub}, {ast.Mult})


@dataclass(frozen=True)
class Scope:
    """The names and functions that an expression may use on a grid with ``ndim`` axes.

    ``names`` maps each field and parameter to its node. The flags allow `t` (``time``), the operators of ``space``
    (``operators``), the function noise() (``noise``), reductions such as integral() and at() (``reductions``), and sum(), over
    receivers and their samples (``sums``).
    """

    ndim: int
    names: Mapping[str, Node] = field(default_factory=dict)
    time: bool = True
    operators: bool = False
    noise: bool = False
    reductions: bool = False
    sums: bool = False
    space: Space | None = None

    def symbols(self) -> dict[str, Node]:
        """The node of every name that is allowed: fields, parameters, coordinates, pi and t."""
        known: dict[str, Node] = {AXES[axis]: Coordinate(axis) for axis in range(self.ndim)}
        known["pi"] = Constant(PI)
        if self.time:
            known["t"] = Time()
        return {**known, **self.names}

    def calls(self) -> dict[str, tuple[Callable[..., Node], int, int]]:
        """The functions that are allowed: name -> (constructor of the node, least and largest number of arguments)."""
        known: dict[str, tuple[Callable[..., Node], int, int]] = {
            name: ((lambda *a, name=name: Pointwise(name, a)), count, count) for name, count in FUNCTIONS.items()
        }
        if self.operators:
            known.update((self.space or Space(self.ndim)).operators())
        if self.reductions:
            known.update({name: ((lambda a, name=name: Reduction(name, a)), 1, 1) for name in REDUCTIONS})
            known["at"] = ((self.space or Space(self.ndim)).at, 1 + self.ndim, 1 + self.ndim)
        if self.sums:
            known[SUM] = ((lambda a: Reduction(SUM, a)), 1, 1)
        if self.noise:
            known["noise"] = (_noise, 1, 2)
        return known


def _noise(*arguments: Node) -> Node:
    """The node of noise(seed) or noise(seed, stream). Raises ValueError unless the arguments are integers from 0 to
    2**32 - 1."""
    whole = [int(a.value) for a in arguments if isinstance(a, Constant) and 0 <= a.value < 2**32 and a.value % 1 == 0]
    if len(whole) < len(arguments):
        raise ValueError("noise() expects whole numbers from 0 to 2**32 - 1")
    return Noise(*whole)


def parse(text: str, scope: Scope, key: str) -> Node:
    """Parse the expression ``text`` into a tree.

    ``scope`` holds the allowed names and functions. ``key`` is the key of the text in the input, for error messages.
    Raises InputError, with the position in the text, for syntax errors, unknown names and functions, wrong numbers of
    arguments, Python syntax that is not part of the language, and expressions that are too long, too deeply nested or
    too large once nested operators are written out.
    """
    return _Parser(text, scope, key).tree()


class _Parser:
    """Parser of one expression. It keeps the text and the key for error messages."""

    def __init__(self, text: str, scope: Scope, key: str) -> None:
        self.text, self.key = text.strip(" \t\n\r"), key
        self.symbols, self.calls = scope.symbols(), scope.calls()

    def tree(self) -> Node:
        """Parse the whole text. Raises the errors of `parse`."""
        if len(self.text) > LONGEST:
            raise InputError(
                f"{self.key}: expected an expression of at most {LONGEST} characters, but got {len(self.text)}; shorten it"
            )
        strange = FOREIGN.search(self.text)
        if strange:
            self.fail(strange.start(), _strange(strange[0]))
        tree = self.convert(self.python(), 0)
        size, height = size_and_height(tree)
        if size > LARGEST or height > TALLEST:
            what = f"{size:.3g} operations" if size > LARGEST else f"{height} levels of operations"
            most = LARGEST if size > LARGEST else TALLEST
            raise InputError(
                f"{self.key}: expected at most {most} once nested operators are written out, but got {what}; nest fewer"
            )
        return tree

    def python(self) -> ast.expr:
        """Parse the text to a syntax tree of Python's `ast`. Line breaks count as spaces."""
        try:
            with warnings.catch_warnings():  # Python's SyntaxWarnings; `convert` refuses such text with its own message
                warnings.simplefilter("ignore")
                return ast.parse(BREAKS.sub(" ", self.text), mode="eval").body
        except SyntaxError as error:
            advice = "write where(condition, a, b)" if KEYWORDS.search(self.text) else ""
            self.fail((error.offset or 1) - 1, f"the expression cannot be read ({error.msg})", advice)
        except (ValueError, RecursionError, MemoryError):
            self.fail(0, "the expression cannot be read: it is nested too deeply, or one sum has thousands of terms")

    def fail(self, column: int, what: str, advice: str = "") -> NoReturn:
        """Raise InputError that says ``what`` is wrong at the character ``column`` (counted from 0), with the text around
        it and the ``advice``, if any."""
        text = BREAKS.sub(" ", self.text)
        column = min(column, len(text))
        start = 0 if len(text) <= SHOWN else max(0, column - SHOWN // 2)
        part = text[start : start + SHOWN]
        part = ("..." if start else "") + part + ("..." if start + SHOWN < len(text) else "")
        raise InputError(f"{self.key}: {what}, at character {column + 1} of {part!r}" + (advice and f"; {advice}"))

    def convert(self, part: ast.expr, depth: int) -> Node:
        """Convert a node of Python's syntax tree to a `Node`. ``depth`` is its depth of nesting, at most DEEPEST."""
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
            case ast.BinOp(op=operator) if type(operator) in BINARY:
                return self.chain(part, down)
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISON:
                return Pointwise(COMPARISON[type(operator)], (self.convert(left, down), self.convert(right, down)))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self.call(part, name, arguments, down)
        self.fail(self.column(part), self.foreign(part))

    def column(self, part: ast.expr) -> int:
        """The column to report for unsupported syntax: the operator of a binary operation, else the start."""
        if not isinstance(part, ast.BinOp):
            return part.col_offset
        assert part.left.end_col_offset is not None
        between = self.text[part.left.end_col_offset : part.right.col_offset]
        return part.left.end_col_offset + len(between) - len(between.lstrip(" \t\n\r)"))

    def chain(self, part: ast.BinOp, depth: int) -> Node:
        """Convert a chain of operations of equal precedence, a + b - c ..., evaluated from left to right.

        A long sum or product becomes a balanced tree, to limit its height.
        """
        kinds = next((kinds for kinds in CHAINS if type(part.op) in kinds), {type(part.op)})
        first: ast.expr = part
        pending: list[tuple[str, ast.expr]] = []
        while isinstance(first, ast.BinOp) and type(first.op) in kinds and (kinds in CHAINS or not pending):
            pending.append((BINARY[type(first.op)], first.right))
            first = first.left
        start = self.convert(first, depth)
        links = [(function, self.convert(right, depth)) for function, right in reversed(pending)]
        return _joined(start, links)

    def number(self, part: ast.Constant) -> float:
        """The value of a numeric literal. Raises InputError if it overflows float64."""
        assert isinstance(part.value, int | float)  # `convert` passes no other constants
        try:
            value = float(part.value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            self.fail(part.col_offset, "this number is too large for float64")
        return value

    def foreign(self, part: ast.expr) -> str:
        """The message for Python syntax that is not part of the language."""
        match part:
            case ast.Compare(ops=[_, _, *_]):
                return "comparisons cannot be chained: write (a < b)*(b < c)"
            case ast.IfExp():
                return "'if' is not part of the language: write where(condition, a, b)"
            case ast.BoolOp() | ast.UnaryOp():
                return "'and', 'or' and 'not' are not part of the language: multiply comparisons, or use where()"
            case ast.BinOp():
                return "only the operators + - * / ** are part of the language (a power is written **)"
            case ast.Attribute(attr="npy" | "h5" | "hdf5"):
                return (
                    "this is the name of a file, not an expression; only parameters and initial fields may name files, and "
                    "nothing else then"
                )
            case ast.Call():
                return (
                    "only plain calls such as sin(u), without a prefix or names of arguments, are part of the language"
                )
        return "this is not part of the expression language (numbers, names, + - * / **, comparisons and functions)"

    def symbol(self, part: ast.Name, name: str) -> Node:
        """The node of a name. Raises InputError if the name is unknown or a function."""
        if name in self.symbols:
            return self.symbols[name]
        if name in self.calls:
            self.fail(part.col_offset, f"'{name}' is a function", f"write {name}(...)")
        advice = self.derivative(name) or self.wished(name, WISHED_NAMES) or _suggestion(name, self.symbols)
        self.fail(part.col_offset, f"unknown name {_short(name)}", advice)

    def call(self, part: ast.Call, name: str, arguments: list[ast.expr], depth: int) -> Node:
        """Convert a function call. Raises InputError for an unknown function, a wrong number of arguments or an invalid
        argument."""
        if name not in self.calls:
            if name in self.symbols:
                advice = f"write {name}*(...) to multiply"
                self.fail(part.col_offset, f"{_short(name)} is not a function", _short(advice, quote=""))
            advice = (
                self.nested(name, arguments)
                or self.wished(name, WISHES)
                or _elsewhere(name)
                or _beyond(name, self.calls)
                or _suggestion(name, self.calls)
            )
            self.fail(part.col_offset, f"unknown function {_short(name)}", advice)
        make, least, most = self.calls[name]
        if not least <= len(arguments) <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            self.fail(part.col_offset, f"{name}() takes {expected} argument(s) here, not {len(arguments)}")
        try:
            return make(*(self.convert(argument, depth) for argument in arguments))
        except ValueError as error:
            self.fail(part.col_offset, str(error))

    def wished(self, name: str, wishes: Mapping[str, tuple[str, str]]) -> str:
        """The advice in ``wishes`` for a name of another language, such as grad or ln; "" for other names."""
        instead, advice = wishes.get(name.lower(), ("", ""))
        return advice if instead in self.calls else ""

    def derivative(self, name: str) -> str:
        """The advice for a name such as `u_xx`, which means a derivative elsewhere; "" for other names."""
        operand, _, axes = name.rpartition("_")
        known = operand in self.symbols and "d" + axes in self.calls
        return f"write d{axes}({operand})" if known else ""

    def nested(self, name: str, arguments: list[ast.expr]) -> str:
        """The advice for a derivative of third or higher order, such as dxxx: nested derivatives. "" for other names."""
        axes = sorted(name[1:])
        if not name.startswith("d") or not 3 <= len(axes) <= 8 or not all("d" + axis in self.calls for axis in axes):
            return ""
        match arguments:
            case [ast.Name(id=text)]:
                pass
            case _:
                text = "..."
        while axes:
            text = f"d{''.join(axes[-2:])}({text})"
            del axes[-2:]
        return f"write {text}"


def _joined(start: Node, links: Sequence[tuple[str, Node]]) -> Node:
    """Apply the operations ``links``, pairs (function, operand), to ``start`` from left to right.

    More than CHAIN operations are split into two halves, which are joined recursively.
    """
    if len(links) <= CHAIN:
        for function, operand in links:
            start = Pointwise(function, (start, operand))
        return start
    half = len(links) // 2
    function, middle = links[half]
    left = _joined(start, links[:half])
    if function == "subtract":
        function, middle = "add", -middle
    return Pointwise(function, (left, _joined(middle, links[half + 1 :])))


def _short(text: str, quote: str = "'") -> str:
    """A name in quotes, cut to SHOWN characters."""
    return quote + (text if len(text) <= SHOWN else text[:SHOWN] + "...") + quote


def _strange(character: str) -> str:
    """The message for a character that is not allowed in an expression."""
    if character == "#":
        return "comments are not allowed in expressions"
    name = unicodedata.name(character, "")
    return f"the character {character!a}{name and f' ({name})'} is not part of the expression language"


def _elsewhere(name: str) -> str:
    """The advice for a function that only one table of the input has; "" for other names."""
    table = "initial" if name == "noise" else "diagnostics" if name in (*REDUCTIONS, "at") else ""
    return f"{name}() is for [{table}]" if table else ""


def _beyond(name: str, known: Mapping[str, object]) -> str:
    """The advice for an operator along an axis that the grid does not have, such as dz; "" for other names."""
    along_x = re.sub("[yz]", "x", name)
    missing = [axis for axis in AXES if axis in name and f"d{axis}" not in known]
    return f"the grid has no axis {missing[0]}" if along_x in known and missing else ""


def _suggestion(name: str, known: Mapping[str, object]) -> str:
    """The advice for an unknown name: the most similar one, or all names that are known."""
    near = nearest(name, known, SIMILAR)
    return f"did you mean '{near}'?" if near else f"known here: {listing(sorted(known))}"
