"""Whether a file in upstream's tree says what we would write there, however a formatter has laid it out."""

from __future__ import annotations

import ast
import re
from itertools import groupby

__all__ = ["same_native", "same_python"]

#: Comments of C++, and strings so that nothing inside of them is taken for a comment.
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def same_python(left: str, right: str) -> bool:
    """Whether two files are the same statements, but for comments, the lines of docstrings and the order of imports."""
    try:
        return _statements(left) == _statements(right)
    except SyntaxError:
        return False


def same_native(left: str, right: str) -> bool:
    """Whether two files of C++ or CUDA are the same, but for comments, white space and the order of includes."""
    return _essence(left) == _essence(right)


def _statements(text: str) -> str:
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names.sort(key=ast.dump)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = " ".join(node.value.value.split())
        elif isinstance(body := getattr(node, "body", None), list):
            runs = groupby(body, lambda one: isinstance(one, ast.Import | ast.ImportFrom))
            body[:] = [one for imports, run in runs for one in (sorted(run, key=ast.dump) if imports else run)]
    return ast.dump(module)


def _essence(text: str) -> tuple[list[str], str]:
    bare = _COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    lines = [line.strip() for line in bare.splitlines()]
    includes = sorted(line for line in lines if line.startswith("#include"))
    code = "".join("".join(line.split()) for line in lines if not line.startswith("#include"))
    return includes, code.replace('""', "")  # a long string may be written in parts
