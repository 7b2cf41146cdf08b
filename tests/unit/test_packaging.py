"""The pins, the declared ranges and the scripts agree."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

import agilerl_exp

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
PINS = dict(line.split("==") for line in LINES)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_installed_dependency_is_pinned_inside_its_range():
    pins = {canonical(name): Version(version) for name, version in PINS.items()}
    declared = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, declared):
        if requirement.name != PROJECT["name"]:
            assert pins[canonical(requirement.name)] in requirement.specifier, requirement


def test_pins_hold_everywhere():
    assert PINS["torch"] == "2.13.0"
    assert not [line for line in LINES if "+" in line or "@" in line or "/" in line]


def test_scripts_can_be_run():
    scripts = [*(ROOT / "scripts").iterdir(), ROOT / ".ci/run"]
    assert len(scripts) >= 4
    assert all(os.access(script, os.X_OK) for script in scripts)


def test_one_version():
    assert agilerl_exp.__version__ == PROJECT["version"]
