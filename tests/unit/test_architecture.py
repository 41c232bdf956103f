"""The rooms of docs/architecture.md: who may import whom, and what a process must not load.

Only `ast`: nothing of the project is imported, so a broken room cannot hide its edges.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "swiftlm_proto": ROOT / "proto",
    "swiftlm_engine": ROOT / "engine",
    "swiftlmd": ROOT / "daemon",
    "swiftlmctl": ROOT / "ctl",
}

# What each room may import besides itself and the standard library, and why.
ALLOWED = {
    "swiftlm_proto": {"betterproto2", "grpclib"},
    "swiftlm_engine": {
        "mlx",
        "mlx_lm",
        "numpy",  # the readable side of an MLX array
        "jinja2",  # chat templates, rendered in a process of their own
        "tokenizers",  # long prompts, tokenised in a process of their own
        "llguidance",  # token masks of grammars
        "PIL",  # pictures, with the extra `vision` (ADR 0004)
        "gguf",  # GGUF import (ADR 0002)
        "grpclib",  # server room only, see SERVER_ONLY
        "betterproto2",
        "swiftlm_proto",
    },
    "swiftlmd": {
        "aiohttp",
        "grpclib",
        "betterproto2",  # messages as JSON, for the web page
        "uvloop",
        "psutil",
        "tomlkit",
        "huggingface_hub",
        "httpx2",  # the errors that huggingface_hub raises
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "swiftlm_proto",
        "swiftlm_engine",  # only swiftlm_engine.brain, see below
    },
    "swiftlmctl": {
        "swiftlm_proto",
        "grpclib",
        "betterproto2",
        "typer",
        "rich",
    },
}

# The wire stays at the engine's edge: these modules, and nothing else of the room, know it.
SERVER_ONLY = {"grpclib", "betterproto2", "swiftlm_proto"}
SERVER_MODULES = ("swiftlm_engine/server/", "swiftlm_engine/__main__.py")

# brain and schedule have no tensors: they run on any machine, brain in the daemon too.
NOT_IN_BRAIN = {
    "mlx",
    "mlx_lm",
    "transformers",
    "tokenizers",
    "numpy",
    "jinja2",
    "llguidance",
    "gguf",
}

# The daemon's processes must not load these: hundreds of megabytes, and MLX reads its environment
# at import, which is the engine process's business.
HEAVY = {"mlx", "mlx_lm", "transformers", "numpy", "torch", "gguf", "huggingface_hub"}


def python_files(package: str) -> list[Path]:
    files = sorted((ROOMS[package] / package).rglob("*.py"))
    return [f for f in files if "_gen" not in f.parts]


def imports(path: Path) -> list[tuple[str, int]]:
    """Absolute module names imported anywhere in the file, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.module, node.lineno))
    return found


def third_party(name: str) -> bool:
    top = name.split(".")[0]
    return top not in sys.stdlib_module_names and top != "__future__"


@pytest.mark.parametrize("package", ROOMS)
def test_room_imports_only_what_the_architecture_allows(package):
    allowed = ALLOWED[package] | {package}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files(package)
        for name, line in imports(path)
        if third_party(name) and name.split(".")[0] not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ROOMS)
def test_every_allowed_import_is_used(package):
    files = (ROOMS[package] / package).rglob("*.py")
    used = {name.split(".")[0] for path in files for name, _ in imports(path)}
    assert ALLOWED[package] - used == set()


def test_every_package_that_a_room_may_import_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["vision"]]
    declared = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in asked}
    names = {"PIL": "pillow"}  # where it is not the module's own
    packages = set().union(*ALLOWED.values()) - ROOMS.keys()
    assert {names.get(package, package.replace("_", "-")) for package in packages} <= declared


def test_wire_stays_in_the_server_modules_of_the_engine():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files("swiftlm_engine")
        for name, line in imports(path)
        if name.split(".")[0] in SERVER_ONLY
        and not str(path.relative_to(ROOT / "engine")).startswith(SERVER_MODULES)
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["brain", "schedule"])
def test_brain_and_schedule_have_no_tensors(folder):
    files = sorted((ROOT / "engine" / "swiftlm_engine" / folder).rglob("*.py"))
    allowed = ("swiftlm_engine.brain", f"swiftlm_engine.{folder}")
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for name, line in imports(path)
        if name.split(".")[0] in NOT_IN_BRAIN
        or (name.startswith("swiftlm_engine.") and not name.startswith(allowed))
    ]
    assert files
    assert wrong == []


# How the ends of a group greet each other is written once; it has no MLX in it either.
FROM_THE_ENGINE = (
    "swiftlm_engine.brain",
    "swiftlm_engine.cluster.link",
    "swiftlm_engine.cluster.transport",
)


def test_daemon_imports_only_the_brain_of_the_engine_and_the_greeting_of_groups():
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in python_files("swiftlmd")
        for name, line in imports(path)
        if name.split(".")[0] == "swiftlm_engine" and not name.startswith(FROM_THE_ENGINE)
    ]
    assert wrong == []


def test_rooms_have_no_init_file():
    assert [room.name for room in ROOMS.values() if (room / "__init__.py").exists()] == []


def loaded_by(module: str) -> set[str]:
    path = ":".join(str(room) for room in ROOMS.values())
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


def test_daemon_process_loads_nothing_heavy():
    assert loaded_by("swiftlmd.main") & HEAVY == set()


def test_cli_loads_nothing_heavy():
    loaded = loaded_by("swiftlmctl.main")
    assert loaded & (HEAVY | {"grpclib", "betterproto2", "aiohttp", "swiftlmd"}) == set()


def test_weight_files_are_listed_in_one_place():
    """A bare glob also finds the `._NAME` that macOS keeps beside files of foreign volumes."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ROOMS
        for path in python_files(package)
        if path.name != "files.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("glob", "rglob")
        and re.search(r"safetensors|gguf", ast.unparse(node))
    ]
    assert wrong == []


def folder_order(package: str) -> list[str]:
    """From top to bottom, as docs/architecture.md lists them."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.search(rf"^- `{package}`: ((?:.+\n)(?:  .+\n)*)", page, re.MULTILINE)
    assert listed, package
    return [name.strip() for name in listed[1].replace("\n", " ").split(",")]


def folder_of(package: str, module: str) -> str:
    """Of `package.folder.file`: the folder, or the file where it lies in the package's root."""
    return module.removeprefix(f"{package}.").split(".")[0]


def modules_of(package: str) -> dict[str, Path]:
    base = ROOMS[package]
    return {
        ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
        for path in python_files(package)
    }


@pytest.mark.parametrize("package", ["swiftlm_engine", "swiftlmd", "swiftlmctl"])
def test_imports_between_folders_only_go_down(package):
    order = folder_order(package)
    modules = modules_of(package)
    entry = {package, f"{package}.__main__"}  # above everything
    found = {folder_of(package, module) for module in modules if module not in entry}
    assert sorted(order) == sorted(found)
    assert len(set(order)) == len(order)
    upward = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for module, path in modules.items()
        if module not in entry
        for name, line in imports(path)
        if name.startswith(f"{package}.")
        and order.index(folder_of(package, name)) < order.index(folder_of(package, module))
    ]
    assert upward == []


def imported_files(path: Path, modules: dict[str, Path]) -> set[str]:
    """Those of the room that must be there before `path` can be; `if TYPE_CHECKING` is skipped."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found |= {name for name in (whole, node.module) if name in modules}
        nodes += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("package", ROOMS)
def test_no_circle_of_files(package):
    modules = modules_of(package)
    edges = {name: imported_files(path, modules) - {name} for name, path in modules.items()}
    # A package's file is read before those in it, which is no circle.
    edges = {n: {e for e in es if not n.startswith(f"{e}.")} for n, es in edges.items()}
    try:
        tuple(TopologicalSorter(edges).static_order())
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


@pytest.mark.parametrize("package", ROOMS)
def test_no_class_name_twice_in_a_room(package):
    places: dict[str, list[str]] = {}
    for module, path in modules_of(package).items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_loose_file_in_a_package_root():
    """Next to the entries: what all folders say to each other, and what puts them together."""
    loose = {
        package: {p.name for p in (base / package).glob("*.py")} - {"__init__.py", "__main__.py"}
        for package, base in ROOMS.items()
        if package != "swiftlm_proto"
    }
    assert loose == {
        "swiftlm_engine": {"messages.py", "ranks.py"},
        "swiftlmd": {"main.py", "daemon.py", "clock.py", "faults.py"},
        "swiftlmctl": {"main.py", "client.py", "errors.py", "output.py"},
    }
