"""The rooms and their order, no import cycles, light imports, and the public names."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import shardwriter

PACKAGE = Path(shardwriter.__file__).parent
HEAVY = ["tensorflow", "apache_beam", "torch", "pandas", "pyarrow", "jax", "datasets", "PIL"]

# A room imports from the rooms after it, and from no other; imports inside functions count.
ROOMS = [
    "cli",
    "report",
    "cluster",
    "inspect",
    "reading",
    "writing",
    "sources",
    "storage",
    "dataset",
    "schema",
    "formats",
    "errors",
]


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules():
    return {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def names_imported(node):
    """Modules of this package that an import statement names, by their names inside of it."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        # from package import name: the module of that name where there is one, else the package.
        base = node.module or ""
        names = [
            f"{base}.{alias.name}"
            if f"{base}.{alias.name}".removeprefix("shardwriter.") in modules()
            else base
            for alias in node.names
        ]
    else:
        return
    for name in names:
        root, _, inside = name.partition(".")
        if root == "shardwriter":
            yield inside


def imports(module, *, when_imported=False):
    """Modules of this package that one imports; ``when_imported`` leaves out what comes later."""
    todo = list(ast.parse(modules()[module].read_text(encoding="utf-8")).body)
    found = set()
    while todo:
        node = todo.pop()
        if when_imported:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                todo += node.orelse
                continue
        found.update(names_imported(node))
        todo += ast.iter_child_nodes(node)
    return found


def room_of(module):
    return module.partition(".")[0]


def test_every_module_is_in_a_room():
    assert {room_of(module) for module in modules()} == {*ROOMS, "", "__main__"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_those_below_it(room):
    below = ROOMS[ROOMS.index(room) :]
    upward = {
        f"{module} -> {name}"
        for module in modules()
        if room_of(module) == room
        for name in imports(module) - {""}
        if room_of(name) not in below
    }
    assert not upward


def test_no_two_modules_import_each_other():
    graph = {module: imports(module, when_imported=True) - {""} for module in modules()}
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in done:
            return
        path.append(module)
        for name in sorted(graph[module]):
            visit(name)
        path.pop()
        done.add(module)

    for module in graph:
        visit(module)
    assert done == set(modules())


@pytest.mark.parametrize(
    "module",
    [
        "",
        ".cli",
        ".cli.beam",
        ".writing.write",
        ".inspect.stats",
        ".writing.push",
        ".inspect.verify",
    ],
)
def test_importing_it_imports_nothing_heavy(module):
    code = (
        f"import sys, shardwriter{module}\n"
        f"print(*sorted({set(HEAVY)} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_rich_and_typer_are_for_commands_and_reports():
    for module in modules():
        tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                if name.partition(".")[0] in ("rich", "typer", "click"):
                    shown = room_of(module) in ("cli", "report")
                    assert shown or module == "writing.progress_bar", module


def test_rich_is_imported_when_a_bar_is_shown_and_not_before():
    code = "import sys, shardwriter\nassert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_text_reaches_the_terminal_through_one_module():
    # Program text is printed as it is: loader code, a shell command, the version.
    as_it_is = {"cli.schema", "cli.beam", "cli.beam_write", "cli"}
    for module, path in modules().items():
        if room_of(module) == "cli" and module != "cli.common":
            text = path.read_text(encoding="utf-8")
            calls = text.count("typer.echo(") + text.count("typer.secho(")
            assert calls == (module in as_it_is), module


# -- the face --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shardwriter.__all__)
def test_every_public_name_can_be_imported(name):
    value = getattr(shardwriter, name)
    assert value is getattr(shardwriter, name)
    assert getattr(value, "__doc__", None)


def test_a_star_import_gives_all_of_them():
    names = {}
    exec("from shardwriter import *", names)
    assert set(shardwriter.__all__) <= set(names)


def test_a_star_import_replaces_no_builtin():
    names = {}
    exec("from shardwriter import *", names)
    assert not set(shardwriter.__all__) & set(dir(builtins))
    assert "open" not in names
    assert shardwriter.open is shardwriter.open_dataset


def test_all_names_are_those_that_the_face_imports():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwriter.")
        for alias in node.names
    }
    assert imported == set(shardwriter.__all__)
    assert len(shardwriter.__all__) == len(imported), "a name stands twice"


def test_functions_stay_functions_when_the_modules_of_their_names_are_imported():
    code = (
        "import shardwriter.writing.write, shardwriter.inspect.stats\n"
        "assert all(map(callable, [shardwriter.write, shardwriter.stats, shardwriter.verify]))\n"
        "from shardwriter.writing.write import write_dataset\n"
        "assert callable(shardwriter.write)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = shardwriter.nothing


def test_the_version_is_that_of_the_package():
    assert shardwriter.__version__[0].isdigit()
