"""The code of the README and the docs is part of the tests.

Every block of Python runs, those of a page one after another in one namespace. A block
of text below it shows what it printed, where `...` stands for what differs from one
machine or version to another.
"""

import contextlib
import doctest
import io
import runpy
from pathlib import Path
from typing import Any

import jax
import pytest
from sybil import Example, Sybil
from sybil.document import PythonDocStringDocument
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser


_ROOT = Path(__file__).parent
_INCLUDE = "--8<-- "
_PRINTED = "__printed__"

_evaluate = PythonEvaluator()
_checker = doctest.OutputChecker()


def _run(example: Example) -> None:
    """Run a block, or the script that it includes, and keep what it prints."""
    assert not example.namespace.pop(_PRINTED, ""), (
        "the block before this one prints, but no text block shows it"
    )
    source = example.parsed.strip()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if source.startswith(_INCLUDE):
            path = _ROOT / source.removeprefix(_INCLUDE).strip('"')
            example.namespace.update(runpy.run_path(str(path), run_name="__main__"))
        else:
            _evaluate(example)
    example.namespace[_PRINTED] = printed.getvalue()


def _compare(example: Example) -> str | None:
    """Compare what was printed with a block of text."""
    given = example.namespace.pop(_PRINTED, "")
    expected = str(example.parsed)
    if _checker.check_output(expected, given, doctest.ELLIPSIS):
        return None
    return f"expected:\n{expected}\nprinted:\n{given}"


def _as_script(namespace: dict[str, Any]) -> None:
    """Let a page's classes and functions say that they are of the main script."""
    namespace["__name__"] = "__main__"


@pytest.fixture
def plain_jax():
    """JAX as a reader has it, whatever the tests set."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


_PARSERS = [
    CodeBlockParser(language="python", evaluator=_run),
    CodeBlockParser(language="text", evaluator=_compare),
]
_pages = Sybil(
    parsers=_PARSERS,
    setup=_as_script,
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    fixtures=["plain_jax"],
)
_docstrings = Sybil(
    parsers=_PARSERS,
    setup=_as_script,
    patterns=["staged/*.py"],
    fixtures=["plain_jax"],
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = (_pages + _docstrings).pytest()
