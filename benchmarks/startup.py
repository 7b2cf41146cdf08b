"""CPU seconds of the cheap commands, beside a one-key Hydra app's `--help` in the same environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HYDRA_APP = """
import hydra

@hydra.main(version_base="1.3", config_path=None)
def run(cfg):
    pass

run()
"""


def cpu_seconds(command: list[str], folder: str) -> float:
    """User + system time of one run of a command."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime


def measure(repeats: int = 5) -> dict[str, float]:
    """The least of several interleaved runs of each command."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "one_key.py").write_text(HYDRA_APP)
        ours = [sys.executable, "-m", "agilerl_exp"]
        commands = {
            "hydra_app_help": [sys.executable, "one_key.py", "--help"],
            "help": [*ours, "--help"],
            "show_config": [*ours, "--cfg", "job"],
            "config_error": [*ours, "algo.gama=1"],
            "import_models": [sys.executable, "-c", "import agilerl_exp.models.algo"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(repeats):
            for name, command in commands.items():
                times[name].append(cpu_seconds(command, folder))
        return {name: round(min(values), 3) for name, values in times.items()}


if __name__ == "__main__":
    print(json.dumps({"benchmark": "startup", "unit": "CPU seconds", **measure()}))
