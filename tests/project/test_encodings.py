"""Text files are read and written as UTF-8, whatever the locale of the user."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [path for folder in ("hpcstencil", "postprocess") for path in sorted((ROOT / folder).rglob("*.py"))]
OTHERS = {"os.open", "Image.open", "h5py.h5o.open"}  # they open no text files


def without_encoding(tree):
    """Lines of the calls that open a text file in the encoding of the locale."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) in OTHERS:
            continue
        name = ast.unparse(call.func).split(".")[-1]
        words = {word.arg: word.value for word in call.keywords}
        if name in ("read_text", "write_text", "open", "fdopen") and "encoding" not in words:
            modes = [words["mode"]] if "mode" in words else call.args
            binary = any(isinstance(mode, ast.Constant) and "b" in str(mode.value) for mode in modes)
            if name.endswith("_text") or not binary:
                yield call.lineno


def test_text_files_name_their_encoding():
    found = {str(path): list(without_encoding(ast.parse(path.read_text(encoding="utf-8")))) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_search_finds_what_it_should():
    bad = 'p.read_text()\np.write_text("b")\np.open()\nopen(p)\nopen(p, "w")\np.open(mode="a")\nos.fdopen(3, "w")\n'
    good = 'open(p, "rb")\np.open("wb")\np.read_text(encoding="utf-8")\nos.open(p, 1)\nos.fdopen(3, mode="wb")\n'
    assert sorted(without_encoding(ast.parse(bad))) == [1, 2, 3, 4, 5, 6, 7]
    assert list(without_encoding(ast.parse(good))) == []
