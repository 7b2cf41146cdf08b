"""Runs the real command in a folder, the way a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

INHERITED = {"HYDRA_FULL_ERROR", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SLURM_JOB_ID"}


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    env = {key: value for key, value in os.environ.items() if key not in INHERITED} | environment
    command = [sys.executable, "-m", "agilerl_exp", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str], timeout: float = 300) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return finish(start(folder, *arguments, **environment))
