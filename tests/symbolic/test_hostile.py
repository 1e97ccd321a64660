"""Expressions that try to reach Python, or to exhaust it: refused (or, where they are legitimate, understood) within a
second or so and a few megabytes. They run in a child process whose memory and processor time are limited, for Python's
own parser is among what is tried: a crash of it would end the child."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADDRESS_SPACE = 2**31  # bytes of the child, libraries included
PROCESSOR = 120  # seconds of the child
PEAK = 2**25  # bytes that reading one expression may allocate at a time

# (expression, words of the refusal; None where it is understood)
REACHING = [
    ("__import__('os').system('touch hacked')", "only plain calls"),
    ("__import__('os')", "unknown function '__import__'"),
    ("eval('1')", "unknown function 'eval'"),
    ("exec('import os')", "unknown function 'exec'"),
    ("open('hacked', 'w')", "unknown function 'open'"),
    ("getattr(u, 'real')", "unknown function 'getattr'"),
    ("print(u)", "unknown function 'print'"),
    ("u.__class__", "not part of the expression language"),
    ("u.__class__.__bases__[0].__subclasses__()", "only plain calls"),
    ("().__class__", "not part of the expression language"),
    ("(1).__class__", "not part of the expression language"),
    ("sin.__globals__", "not part of the expression language"),
    ("u[0]", "not part of the expression language"),
    ("u[::1]", "not part of the expression language"),
    ("lambda: 1", "not part of the expression language"),
    ("(lambda x: x)(u)", "only plain calls"),
    ("[u for u in v]", "not part of the expression language"),
    ("{u: v for u in v}", "not part of the expression language"),
    ("(u for u in v)", "not part of the expression language"),
    ("sin(u for u in v)", "not part of the expression language"),
    ("{u}", "not part of the expression language"),
    ("[u, v]", "not part of the expression language"),
    ("u, v", "not part of the expression language"),
    ("f'{u}'", "not part of the expression language"),
    ("f'{__import__(\"os\")}'", "not part of the expression language"),
    ("'u'", "not part of the expression language"),
    ("b'u'", "not part of the expression language"),
    ("'u' * 10**9", "not part of the expression language"),
    ("...", "not part of the expression language"),
    ("None", "not part of the expression language"),
    ("1j", "not part of the expression language"),
    ("(w := u)", "not part of the expression language"),
    ("w = u", "cannot be read"),
    ("u; v", "cannot be read"),
    ("import os", "cannot be read"),
    ("sin(*u)", "not part of the expression language"),
    ("sin(**u)", "only plain calls"),
    ("sin(a=u)", "only plain calls"),
    ("yield u", "cannot be read"),
    ("(yield)", "not part of the expression language"),
    ("await u", "not part of the expression language"),
    ("u if v else 1", "where(condition, a, b)"),
    ("u and v", "'and', 'or' and 'not'"),
    ("not u", "'and', 'or' and 'not'"),
    ("u @ v", "only the operators"),
    ("u // v", "only the operators"),
    ("u << 10**9", "only the operators"),
    ("u in v", "not part of the expression language"),
    ("u is v", "not part of the expression language"),
    ("\N{FULLWIDTH LATIN SMALL LETTER U}", "FULLWIDTH LATIN SMALL LETTER U"),  # NFKC: Python reads u
    ("\N{MATHEMATICAL ITALIC SMALL U}", "MATHEMATICAL ITALIC SMALL U"),
    ("\N{CYRILLIC SMALL LETTER ES}in(u)", "CYRILLIC SMALL LETTER ES"),  # looks like a c
    ("ex\N{CYRILLIC SMALL LETTER ER}(u)", "CYRILLIC SMALL LETTER ER"),
    ("__\N{FULLWIDTH LATIN SMALL LETTER I}mport__('os')", "FULLWIDTH LATIN SMALL LETTER I"),
    ("u\N{ZERO WIDTH SPACE}+ 1", "ZERO WIDTH SPACE"),
    ("u\N{RIGHT-TO-LEFT OVERRIDE}+ 1", "RIGHT-TO-LEFT OVERRIDE"),
    ("\N{ARABIC-INDIC DIGIT ONE}", "ARABIC-INDIC DIGIT ONE"),
    ("u # + v", "comments are not allowed"),
    ("u \\\n + v", "the character"),
    ("u\f+ v", "the character"),
]
EXHAUSTING = [
    ("9**9**9**9", "expected finite numbers"),  # numbers of the tree, worked out in float64
    ("2**10**9", "expected finite numbers"),
    ("u*9**9**9**9", "expected finite numbers"),
    ("9" * 400, "too large for float64"),
    ("9" * 5000, "cannot be read"),
    ("9" * 10**6, "at most 10000 characters"),
    ("0x" + "f" * 9000, "too large for float64"),
    ("1e999", "too large for float64"),
    ("1" + "_0" * 4000, "too large for float64"),
    ("(" * 90 + "u" + ")" * 90, None),
    ("(" * 4000 + "u" + ")" * 4000, "cannot be read"),
    ("(" * 10**5 + "u" + ")" * 10**5, "at most 10000 characters"),
    ("[" * 4000 + "u" + "]" * 4000, "cannot be read"),
    ("f(" * 3000 + "u" + ")" * 3000, "cannot be read"),
    ("+".join(["u"] * 2000), None),
    ("-".join(["u*v"] * 1000), None),
    ("*".join(["u"] * 2000), None),
    ("+".join(["u"] * 4999), "thousands of terms"),
    ("+".join(["u"] * 10**5), "at most 10000 characters"),
    ("-" * 90 + "u", None),
    ("-" * 101 + "u", "nested more than 100 deep"),
    ("-" * 2000 + "u", "nested more than 100 deep"),
    ("-" * 9999 + "u", "cannot be read"),
    ("-" * 10**4 + "u", "at most 10000 characters"),
    ("not " * 2000 + "u", "'and', 'or' and 'not'"),
    ("u**" * 90 + "u", None),
    ("u**" * 3000 + "u", "nested"),
    ("u<" * 3000 + "u", "comparisons cannot be chained"),
    ("sin(" * 90 + "u" + ")" * 90, None),
    ("sin(" * 150 + "u" + ")" * 150, "nested more than 100 deep"),
    ("laplacian(" * 6 + "u" + ")" * 6, None),
    ("laplacian(" * 20 + "u" + ")" * 20, "nest fewer"),
    ("laplacian(" * 99 + "u" + ")" * 99, "nest fewer"),
    ("gradient_squared(" * 99 + "u" + ")" * 99, "nest fewer"),
    ("upwind(" * 60 + "u" + ", u, v)" * 60, "nest fewer"),
    ("div_grad(u, " * 80 + "u" + ")" * 80, "nest fewer"),
    ("where(u > 0, v, " * 90 + "u" + ")" * 90, None),
    ("where(u > 0, v, " * 150 + "u" + ")" * 150, "nested more than 100 deep"),
    ("sin(" + ", ".join(["u"] * 3000) + ")", "takes 1 argument(s) here, not 3000"),
    ("a" * 9000, "unknown name"),
    ("a" * 9000 + "(u)", "unknown function"),
    ("u" * 5000 + " " + "u" * 4000, "cannot be read"),
    ("u + " + " " * 9000 + "v", None),
    ("\n\n u\n + v\n", None),
]  # fmt: skip

CHILD = """
import json, resource, sys, tracemalloc
from pathlib import Path

from hpcstencil.config.reader import from_mapping
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.backend_choice import foreseen
from hpcstencil.validation.errors import InputError
from hpcstencil.problem.build import build
from hpcstencil.simulation.dry_run import report

space, processor = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (space, space))
resource.setrlimit(resource.RLIMIT_CPU, (processor, processor))
for text in json.load(sys.stdin):
    tables = {
        "grid": {"shape": [8, 8]}, "time": {"end": 1.0, "dt": 0.1},
        "equation": {"name": "custom", "rhs": {"u": text, "v": "u"}},
        "diagnostics": {"m": f"integral({text})"},
    }
    tracemalloc.start()
    try:
        problem = build(from_mapping(tables, Path.cwd()))
        report(foreseen(Decomposed.of(problem, 1, 1)))
        sentence = None
    except InputError as error:
        sentence = str(error)
    print(json.dumps([sentence, tracemalloc.get_traced_memory()[1]]), flush=True)
    tracemalloc.stop()
"""


def read_in_a_child(texts, folder):
    """[sentence or None, peak of allocated bytes] for each text that the child came to, and its status."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(ADDRESS_SPACE), str(PROCESSOR)],
        input=json.dumps(texts), env=environment, cwd=folder, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    return [json.loads(line) for line in ended.stdout.splitlines()], ended.returncode, ended.stderr


@pytest.mark.parametrize("rows", [REACHING, EXHAUSTING], ids=["reaching", "exhausting"])
def test_hostile_expressions_are_refused_quickly_and_without_memory(tmp_path, rows):
    answers, status, err = read_in_a_child([text for text, _ in rows], tmp_path)
    assert len(answers) == len(rows), (rows[len(answers)][0][:80], status, err[-2000:])
    assert (status, err) == (0, "")
    for (text, words), (sentence, peak) in zip(rows, answers, strict=True):
        start = text[:60]
        assert (sentence is None) == (words is None), (start, sentence)
        assert peak < PEAK, (start, peak)
        if words is not None:
            assert words in sentence and "\n" not in sentence and len(sentence) < 500, (start, sentence)
    assert list(tmp_path.iterdir()) == []
