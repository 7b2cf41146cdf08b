"""The cheap commands stay cheap: no torch, and about the cost of any Hydra application."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def modules_after(code: str) -> set[str]:
    report = f"import sys\n{code}\nprint('MODULES', *sys.modules)"
    result = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(result.stdout.rpartition("MODULES")[2].split())


def test_help_imports_nothing_heavy():
    code = "sys.argv = ['agilerl-exp', '--help']\nfrom agilerl_exp.app import main\nmain()"
    assert not modules_after(code) & {"torch", "numpy", "gymnasium", "wandb", "accelerate"}


def test_models_import_nothing_heavy():
    heavy = {"torch", "numpy", "gymnasium", "hydra", "omegaconf", "safetensors", "wandb", "accelerate"}
    assert not modules_after("import agilerl_exp.models.algo, agilerl_exp.models.experiment") & heavy


def test_cpu_time_of_help_and_of_the_specs():
    source = importlib.util.spec_from_file_location("startup", ROOT / "benchmarks/startup.py")
    startup = importlib.util.module_from_spec(source)
    source.loader.exec_module(startup)
    times = startup.measure(repeats=3)
    assert times["help"] <= 2 * times["hydra_app_help"], times
    assert times["import_models"] <= max(0.5, 1.2 * times["hydra_app_help"]), (
        times
    )  # the right half: slow machines
