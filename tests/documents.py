"""Composes and validates command lines in the present folder, without running them; a process of its own, since plugins
stay registered. Reads a JSON list of argument lists from standard input, prints a JSON list of what is wrong (or null).
"""

from __future__ import annotations

import json
import sys

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from agilerl_exp import app, catalogue, command_line
from agilerl_exp.models.experiment import ExperimentSpec


def jobs(settings: list[str]) -> list[list[str]]:
    """The first job of a sweep, and one job for each other value of each setting."""
    parsed = OverridesParser.create().parse_overrides(settings)
    values = [
        [f"{o.key_or_group}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [o.input_line]
        for o in parsed
    ]
    first = [given[0] for given in values]
    others = [(place, value) for place, given in enumerate(values) for value in given[1:]]
    return [first, *([*first[:place], value, *first[place + 1 :]] for place, value in others)]


def validate(arguments: list[str]) -> None:
    arguments = command_line.prepare(arguments)
    command_line.import_plugins(command_line.plugins_ahead(arguments))
    app.register()
    settings = [a for a in arguments if "=" in a and not a.startswith("-")]
    some_jobs = jobs(settings)
    sweep = {"-m", "--multirun"} & set(arguments)
    assert len(some_jobs) == 1 or sweep, "several values without -m"
    for job in some_jobs:
        with initialize_config_dir(str(catalogue.CONF), version_base="1.3"):
            tree = compose("config", job)
        ExperimentSpec.from_config(OmegaConf.to_container(tree, resolve=True))


def mistake(arguments: list[str]) -> str | None:
    try:
        validate(arguments)
    except Exception as error:
        return "; ".join(app.explain(error))
    return None


if __name__ == "__main__":
    print(json.dumps([mistake(arguments) for arguments in json.load(sys.stdin)]))
