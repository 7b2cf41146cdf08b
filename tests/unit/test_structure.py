"""The house rules that a machine can check: each a function of (path, source), proved on planted breaches."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agilerl_exp.models.algo import ALGO_REGISTRY
from agilerl_exp.models.base import Spec

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agilerl_exp"
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

BELOW_LOOPS = {"run", "algorithms", "population", "envs", "networks", "buffers", "functional", "models"}
MAY_IMPORT = {
    "training": {"evolution", *BELOW_LOOPS},
    "sweep": {"run", "models"},
    "evolution": {"algorithms", "population", "networks", "models"},
    "run": {"population", "models"},
    "algorithms": {"run", "envs", "population", "networks", "functional", "models"},
    "population": {"networks", "functional", "models"},
    "envs": {"models"},
    "networks": {"functional", "models"},
    "buffers": {"functional", "models"},
    "functional": set(),
    "models": set(),
    "errors": set(),
    "catalogue": {"models"},
    "command_line": {"catalogue", "models"},
    "app": {"catalogue", "command_line", "training", "models"},
    "__main__": {"app"},
    "__init__": set(),
}
ONLY_IN = {
    "hydra": {"app.py", "sweep/"},
    "omegaconf": {"app.py", "sweep/"},
    "wandb": {"run/trackers.py"},
    "accelerate": {"run/distributed.py"},
    "importlib": {"models/_resolve.py", "models/registry.py", "models/plugins.py"},
}
FREE_OF = {
    "models": {"torch", "numpy", "hydra", "omegaconf", "gymnasium", "safetensors"},
    "envs": {"torch"},
    "functional": {"gymnasium", "safetensors"},
    "networks": {"safetensors"},
    "buffers": {"gymnasium"},
}
UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "instantiate", "unsafe_load"}
REDUCTIONS = {"mean", "sum", "std", "var", "norm", "logsumexp"}
GENERATORS = {"Generator", "Philox", "PCG64", "SeedSequence", "BitGenerator", "RandomState"}
TORCH_DRAWS = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal"),
    *("bernoulli", "multinomial", "poisson", "uniform_", "normal_", "random_", "exponential_", "bernoulli_"),
    *(
        "orthogonal_",
        "kaiming_uniform_",
        "kaiming_normal_",
        "xavier_uniform_",
        "xavier_normal_",
        "trunc_normal_",
    ),
}
MAX_FILE, MAX_FUNCTION, MAX_PRODUCT = 350, 50, 10_000

Check = Callable[[str, str], Iterator[str]]


def room(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


def imports(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, inside functions too; relative imports made absolute."""
    package = ["agilerl_exp", *path.split("/")[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def calls(source: str) -> Iterator[tuple[int, str, ast.Call]]:
    """Line, dotted name as written (`np.random.rand`, `.mean` for a method of an expression), and node."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            yield node.lineno, name if re.fullmatch(r"[\w.]+", name) else "." + name.rpartition(".")[2], node


def keywords(call: ast.Call) -> dict[str, str]:
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg}


def import_direction(path: str, source: str) -> Iterator[str]:
    here = room(path)
    for line, name in imports(path, source):
        top, _, rest = name.partition(".")
        there = rest.split(".")[0]
        if top == "agilerl_exp" and there not in {"", here, "errors", *MAY_IMPORT[here]}:
            yield f"{path}:{line}: {here} may not import {there}"


def foreign_imports(path: str, source: str) -> Iterator[str]:
    for line, name in imports(path, source):
        top = name.split(".")[0]
        if name.startswith(("importlib.metadata", "importlib.resources")):
            continue  # they read files, they import nothing
        if top in ONLY_IN and not any(path.startswith(place) for place in ONLY_IN[top]):
            yield f"{path}:{line}: only {sorted(ONLY_IN[top])} may import {top}"
        if top in FREE_OF.get(room(path), set()):
            yield f"{path}:{line}: {room(path)} may not import {top}"


def torch_at_the_door(path: str, source: str) -> Iterator[str]:
    if "/" in path:
        return
    module_level = ast.unparse(
        ast.Module([n for n in ast.parse(source).body if not isinstance(n, ast.FunctionDef)], [])
    )
    for _, name in imports(path, module_level):
        if name.split(".")[0] in {"torch", "numpy", "gymnasium"}:
            yield f"{path}: imports {name} before a job starts"


def lengths(path: str, source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines >= MAX_FILE:
        yield f"{path}: {lines} lines (limit {MAX_FILE}): is the room doing one job?"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length >= MAX_FUNCTION:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines (limit {MAX_FUNCTION})"


def places(path: str, source: str) -> Iterator[str]:
    *folders, _ = path.split("/")
    forbidden = {"utils", "common", "helpers", "core", "misc"}
    if forbidden & {part.removesuffix(".py") for part in path.split("/")}:
        yield f"{path}: a name that says nothing"
    if len(folders) > 1 and folders != ["models", "algorithms"]:
        yield f"{path}: deeper than one folder"


def bare_reductions(path: str, source: str) -> Iterator[str]:
    if room(path) not in {"algorithms", "functional"}:
        return
    for line, name, call in calls(source):
        owner, _, method = name.rpartition(".")
        own_args = 1 if owner in {"torch", "np", "numpy", "torch.linalg", "np.linalg"} else 0
        over_all = len(call.args) <= own_args and not {"dim", "axis"} & keywords(call).keys()
        if method in REDUCTIONS and "." in name and over_all:
            yield f"{path}:{line}: {name}() over all axes couples the members of a cohort"


def unsafe_loading(path: str, source: str) -> Iterator[str]:
    for line, name in imports(path, source):
        if name.split(".")[0] in UNSAFE_MODULES:
            yield f"{path}:{line}: imports {name}"
    for line, name, call in calls(source):
        given = keywords(call)
        if name in UNSAFE_CALLS or name.rpartition(".")[2] in UNSAFE_CALLS - {"compile", "exec", "eval"}:
            yield f"{path}:{line}: calls {name}"
        if name in {"torch.load", "torch.save", "yaml.load"}:
            yield f"{path}:{line}: {name} (un)pickles"
        if given.get("weights_only") == "False" or given.get("allow_pickle") == "True":
            yield f"{path}:{line}: {name} unpickles"


def global_randomness(path: str, source: str) -> Iterator[str]:
    for line, name in imports(path, source):
        if name.split(".")[0] == "random":
            yield f"{path}:{line}: imports the global random"
    for line, name, call in calls(source):
        owner, _, leaf = name.rpartition(".")
        seeded = leaf in GENERATORS or (leaf == "default_rng" and call.args)
        if owner in {"np.random", "numpy.random"} and not seeded:
            yield f"{path}:{line}: {name} draws from, or seeds, a global stream"
        if name in {
            "torch.manual_seed",
            "torch.seed",
            "torch.cuda.manual_seed_all",
            "torch.random.manual_seed",
        }:
            yield f"{path}:{line}: {name} seeds the global stream"
        is_torch = owner == "torch" or owner.endswith("init") or leaf.endswith("_")
        if leaf in TORCH_DRAWS and is_torch and "generator" not in keywords(call):
            yield f"{path}:{line}: {name} without generator= draws from the global stream"


def ascii_only(path: str, source: str) -> Iterator[str]:
    for number, line in enumerate(source.splitlines(), 1):
        if not line.isascii():
            yield f"{path}:{number}: not ASCII"


CHECKS: list[Check] = [
    *(import_direction, foreign_imports, torch_at_the_door, lengths, places),
    *(bare_reductions, unsafe_loading, global_randomness, ascii_only),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_product(check):
    breaches = [line for path in FILES for line in check(path, (PACKAGE / path).read_text())]
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize(
    ("check", "path", "source"),
    [
        (import_direction, "buffers/x.py", "def f():\n    from agilerl_exp.training import loop"),
        (import_direction, "models/algorithms/x.py", "from ...networks import mlp"),
        (import_direction, "envs/x.py", "import agilerl_exp.run.random"),
        (foreign_imports, "training/x.py", "def f():\n    from omegaconf import OmegaConf"),
        (foreign_imports, "models/x.py", "import torch.nn"),
        (foreign_imports, "run/checkpoint.py", "import wandb"),
        (torch_at_the_door, "app.py", "try:\n    import torch\nexcept ImportError:\n    pass"),
        (lengths, "run/x.py", "x = 1\n" * 350),
        (lengths, "run/x.py", "def f():\n" + "    x = 1\n" * 49),
        (places, "envs/utils/x.py", ""),
        (places, "run/helpers.py", ""),
        (places, "run/a/x.py", ""),
        (bare_reductions, "algorithms/x.py", "loss = (a - b).pow(2).mean()"),
        (bare_reductions, "functional/x.py", "loss = torch.sum(a)"),
        (bare_reductions, "functional/x.py", "loss = x.std(keepdim=True)"),
        (unsafe_loading, "run/x.py", "def f():\n    import pickle"),
        (unsafe_loading, "run/x.py", "torch.load(f, weights_only=True)"),
        (unsafe_loading, "run/x.py", "np.load(f, allow_pickle=True)"),
        (unsafe_loading, "app.py", "hydra.utils.instantiate(cfg)"),
        (unsafe_loading, "app.py", "eval('1')"),
        (global_randomness, "envs/x.py", "import random"),
        (global_randomness, "envs/x.py", "np.random.seed(0)"),
        (global_randomness, "envs/x.py", "rng = np.random.default_rng()"),
        (global_randomness, "networks/x.py", "torch.nn.init.orthogonal_(w)"),
        (global_randomness, "networks/x.py", "w.uniform_(-1, 1)"),
        (global_randomness, "networks/x.py", "torch.manual_seed(0)"),
        (ascii_only, "run/x.py", "# caf\u00e9"),
    ],
)
def test_planted_violation_is_caught(check, path, source):
    assert list(check(path, source))


@pytest.mark.parametrize(
    ("check", "path", "source"),
    [
        (
            bare_reductions,
            "algorithms/x.py",
            "a.mean(-1) + b.sum(dim=1) + torch.mean(c, -1) + np.std(d, axis=0)",
        ),
        (bare_reductions, "training/x.py", "returns.mean()"),
        (unsafe_loading, "models/x.py", "re.compile('a'); loader.exec_module(m); model.eval()"),
        (
            global_randomness,
            "networks/x.py",
            "torch.rand(3, generator=g); np.random.default_rng(3); rng.normal()",
        ),
        (import_direction, "training/x.py", "from agilerl_exp.buffers import ring"),
    ],
)
def test_allowed_code_passes(check, path, source):
    assert not list(check(path, source))


def code_lines(source: str) -> int:
    """Lines that hold code: no blank lines, comments and docstrings (docs/adr/0007)."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    skipped = layout | {tokenize.ENCODING, tokenize.ENDMARKER}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in skipped]
    held = {line for t in tokens for line in range(t.start[0], t.end[0] + 1)}
    texts = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return len(held.difference(*texts))


def test_code_lines_are_counted_without_words():
    source = '"""Module."""\n\nx = 1  # one\n# two\n\ndef f():\n    """Text.\n\n    More."""\n    return (\n    x)\n'
    assert code_lines(source) == 4


def test_product_size():
    assert sum(code_lines((PACKAGE / path).read_text()) for path in FILES) <= MAX_PRODUCT


def test_every_text_is_ascii():
    folders = ["conf", "tests", "scripts", "benchmarks", ".ci"]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [
        path
        for path in files
        if path.suffix in {".py", ".yaml", ".c", ""} and "__pycache__" not in path.parts
    ]
    assert texts
    breaches = [line for path in texts for line in ascii_only(str(path.relative_to(ROOT)), path.read_text())]
    assert not breaches, "\n".join(breaches)


def all_specs(base: type[Spec] = Spec) -> Iterator[type[Spec]]:
    ALGO_REGISTRY.names()  # imports them
    for cls in base.__subclasses__():
        if cls.__module__.startswith("agilerl_exp."):
            yield cls
        yield from all_specs(cls)


def test_every_spec_field_says_what_it_means():
    silent = [
        f"{cls.__name__}.{name}"
        for cls in all_specs()
        for name, field in cls.model_fields.items()
        if not (field.description or "").strip()
    ]
    assert not silent
