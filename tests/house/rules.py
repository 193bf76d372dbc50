"""The style guide as functions: source text in, complaints out, one line each.

What ruff, mypy and import-linter can check is theirs; this is the rest. `EXCEPTIONS` names every
place that a rule leaves out, and a rule without a test that shows it failing is not in here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

MODULE_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 60
MODULE_DOCSTRING_LINES_MAX: Final = 8

EMPTY_WORDS: Final = frozenset(
    {"common", "helper", "helpers", "manager", "misc", "util", "utils", "utilities"}
)

EXCEPTIONS: Final[dict[str, tuple[str, ...]]] = {
    # name or prefix of names that are forbidden in inferd/: the files and folders that may
    "asyncio.Lock": (),
    "asyncio.create_task": (),
    "asyncio.ensure_future": (),
    "asyncio.gather": (),
    "asyncio.get_event_loop": (),
    "asyncio.shield": (),
    "asyncio.wait_for": (),
    "datetime.date.today": (),
    "datetime.datetime.now": ("inferd/clock.py",),
    "datetime.datetime.today": (),
    "datetime.datetime.utcnow": (),
    "time.monotonic": (),
    "time.perf_counter": (),
    "time.sleep": (),
    "time.time": ("inferd/clock.py",),
    "print": ("inferd/cli/",),
    "concurrent.futures.ThreadPoolExecutor": ("inferd/app.py", "inferd/api/recorder.py"),
    "threading.Thread": (),
    "starlette.middleware.base": (),
    "starlette.testclient": (),
    "httpx": (),
    "requests": (),
    "urllib.request": (),
    "urllib3": (),
    "http.client": ("inferd/cli/",),  # a command waits for its answer; there is no loop to block
    # Libraries behind one border, where their errors become ours.
    "aiosqlite": ("inferd/storage/",),
    "httptools": ("inferd/upstream/", "inferd/api/http_protocol.py"),
    "sqlite3": ("inferd/storage/",),
    # Chance comes from a `random.Random` that is handed in.
    "random.choice": (),
    "random.choices": (),
    "random.random": (),
    "random.randint": (),
    "random.randrange": (),
    "random.sample": (),
    "random.seed": (),
    "random.shuffle": (),
    "random.uniform": (),
}

FORBIDDEN_IN_TESTS: Final = frozenset({"asyncio.wait_for", "time.sleep"})

DRAWINGS: Final = frozenset({"inferd/errors.py", "inferd/workers/states.py"})
"""Modules that open with a picture of what they hold, as long as it takes."""

_BANNER: Final = re.compile(r"^\s*#\s*([-=*#~])\1{3,}")
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


def complaints(source: str, path: str) -> list[str]:
    """All that is wrong with one Python file. `path` is relative to the repository's root."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return [f"{path}:{error.lineno}: {error.msg}"]
    found = [*_size(source), *_functions(tree), *_names(tree, path), *_banners(source)]
    if path.startswith("inferd/"):
        found += [*_docstring(tree, path), *_forbidden(tree, path, frozenset(EXCEPTIONS))]
    else:
        found += _forbidden(tree, path, FORBIDDEN_IN_TESTS)
    return [f"{path}:{complaint}" for complaint in found]


def _size(source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{lines}: a module has at most {MODULE_LINES_MAX} lines"


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, AnyFunction):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield (
                    f"{node.lineno}: {node.name} has {lines} lines; "
                    f"a function has at most {FUNCTION_LINES_MAX}"
                )


def _names(tree: ast.Module, path: str) -> Iterator[str]:
    definitions = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | AnyFunction))
    named = [(1, path.removesuffix(".py")), *((node.lineno, node.name) for node in definitions)]
    for line, name in named:
        for word in _WORD.findall(name):
            if word.lower() in EMPTY_WORDS:
                yield f"{line}: {name}: {word!r} says nothing; name what it is or does"


def _banners(source: str) -> Iterator[str]:
    for number, line in enumerate(source.splitlines(), 1):
        if _BANNER.match(line):
            yield f"{number}: a banner: what needs one is a module of its own"


def _docstring(tree: ast.Module, path: str) -> Iterator[str]:
    docstring = ast.get_docstring(tree)
    if docstring is None:
        yield "1: a module says what it is for, what it owns and what always holds"
    elif len(docstring.splitlines()) > MODULE_DOCSTRING_LINES_MAX and path not in DRAWINGS:
        yield f"1: a module's docstring has at most {MODULE_DOCSTRING_LINES_MAX} lines"


def _forbidden(tree: ast.Module, path: str, names: frozenset[str]) -> Iterator[str]:
    imported = dict(_imported(tree))
    for node in ast.walk(tree):
        for full_name in _mentioned(node, imported):
            for name in names:
                is_it = full_name == name or full_name.startswith((f"{name}.", f"{name}_ns"))
                if is_it and not path.startswith(EXCEPTIONS[name] or ("nowhere",)):
                    yield f"{node.lineno}: {full_name} is not used here"  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and _is_create_task_of_a_loop(node):
            yield f"{node.lineno}: create_task of a loop: tasks live in a TaskGroup"


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local name, full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    (alias.asname, alias.name)
                    if alias.asname
                    else (alias.name.partition(".")[0],) * 2
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _mentioned(node: ast.AST, imported: dict[str, str]) -> Iterator[str]:
    """The full names that a node mentions: what it imports, or what an expression resolves to."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute | ast.Name):
        parts = _dotted(node)
        if parts == ["print"]:
            yield "print"
        elif len(parts) > 1 and parts[0] in imported:
            yield ".".join([imported[parts[0]], *parts[1:]])


def _dotted(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return [*before, node.attr]
    return []


def _is_create_task_of_a_loop(call: ast.Call) -> bool:
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "create_task"):
        return False
    return bool(re.search(r"loop(\(\))?$", ast.unparse(call.func.value)))
