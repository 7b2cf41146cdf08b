"""What can be composed: the config groups, their options and settings, and the text of `--help`.

Must not know: Hydra, so that `--help` costs next to nothing; how options are merged.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agilerl_exp.models.algo import ALGO_REGISTRY, AlgorithmSpec
from agilerl_exp.models.base import Spec
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.evolution import MultiFrequencySpec, NoEvolutionSpec, PbtSpec, TournamentSpec
from agilerl_exp.models.experiment import ExperimentSpec, field_paths, flat
from agilerl_exp.models.explain import PACKAGES as PACKAGES
from agilerl_exp.models.network import (
    AutoSpec,
    CnnSpec,
    CustomSpec,
    MlpSpec,
    MultiInputSpec,
    ResNetSpec,
    SimbaSpec,
)
from agilerl_exp.models.tracker import TrackerSpec
from agilerl_exp.models.training import ReplayBufferSpec, TrainingSpec

_HERE = Path(__file__).resolve().parent
CONF = next(
    folder for folder in (_HERE / "conf", _HERE.parent / "conf") if (folder / "config.yaml").is_file()
)
"""Our config folder: inside an installed package, beside the package in a checkout."""

EXTRA_GROUPS = ("training/exploration", "experiment")
"""Groups without a spec of their own: their options set fields of the others."""

_SPECS: dict[str, type[Spec]] = {
    "network/auto": AutoSpec,
    "network/mlp": MlpSpec,
    "network/simba": SimbaSpec,
    "network/cnn": CnnSpec,
    "network/resnet": ResNetSpec,
    "network/multi_input": MultiInputSpec,
    "network/custom": CustomSpec,
    "training": TrainingSpec,
    "buffer": ReplayBufferSpec,
    "env": EnvSpec,
    "evolution/none": NoEvolutionSpec,
    "evolution/tournament": TournamentSpec,
    "evolution/multi_frequency": MultiFrequencySpec,
    "evolution/pbt": PbtSpec,
    "tracker": TrackerSpec,
}

_HELP = """\
agilerl-exp: evolutionary reinforcement learning, composed from config groups

usage: python -m agilerl_exp [group=option ...] [setting=value ...] [flags]

examples:
  python -m agilerl_exp algo=dqn buffer=per                       train; writes outputs/DAY/TIME/
  python -m agilerl_exp env=lunarlander training.pop_size=4 seed=1
  python -m agilerl_exp env=gym env.id=Acrobot-v1 training/exploration=linear
  python -m agilerl_exp env=custom env.entrypoint=my_env.py:MyEnv env.config.size=5
  python -m agilerl_exp -m buffer=standard,per algo.lr=1e-3,3e-4  a sweep; writes multirun/DAY/TIME/0 1 2 ...
  python -m agilerl_exp resume=outputs/DAY/TIME                   go on with a job where it stopped
  python -m agilerl_exp experiment=smoke                          a few seconds, to see that all parts fit

groups (*: chosen, or taken when nothing is said):
{groups}
Options of your own go to ./conf/GROUP/NAME.yaml, or to another folder named with --config-dir.

settings, with the values of the chosen options:
{settings}
flags:
  -m, --multirun         run every combination of comma-separated values, one job each
  --cfg job --resolve    print the composed experiment and stop
  --info defaults        print which option comes from where (also: config, searchpath, all)
  --config-dir DIR       a folder with more options
  --hydra-help           the flags and settings of Hydra itself
HYDRA_FULL_ERROR=1 in the environment shows the traceback of a mistake.
"""


@dataclass(frozen=True)
class Option:
    """One yaml file of a group: its name, its first comment, its own values, its defaults list."""

    name: str
    about: str
    values: dict[str, Any]
    defaults: list[Any]


def bases() -> dict[str, dict[str, Any]]:
    """The defaults of every spec as plain dicts, by the NAME that yaml files include: `/spec/NAME@_here_`.

    What a group of its own fills in (the ring of `training`, the network of `algo`) is left out.
    """
    filled = {package.rpartition(".")[2] for package in PACKAGES.values() if "." in package}
    trees = {}
    for name, cls in _specs().items():
        tree = cls.model_construct().model_dump(mode="json")
        named = {"name": cls.__name__.removesuffix("Spec")} if issubclass(cls, AlgorithmSpec) else {}
        trees[name] = named | {key: value for key, value in tree.items() if key not in filled}
    return trees


def _specs() -> dict[str, type[Spec]]:
    algorithms = {name: ALGO_REGISTRY.get(name).spec_cls for name in ALGO_REGISTRY.names()}
    return _SPECS | {f"algo/{name.lower()}": cls for name, cls in algorithms.items()}


def setting_paths() -> list[str]:
    """The dotted paths of everything that a command line can set, and the names of the groups."""
    fields = field_paths(ExperimentSpec)
    for name, cls in _specs().items():
        fields |= field_paths(cls, f"{PACKAGES[name.partition('/')[0]]}.")
    return list(dict.fromkeys([*PACKAGES, *EXTRA_GROUPS, *fields, "algo.name"]))


def options(group: str, folders: list[Path]) -> list[Option]:
    """The options of a group in all folders, each name once."""
    found: dict[str, Option] = {}
    for folder in folders:
        for file in sorted((folder / group).glob("*.yaml")):
            found.setdefault(file.stem, _read(file))
    return list(found.values())


def help_text(folders: list[Path], asked: dict[str, str]) -> str:
    """The text of `--help`.

    Args:
        folders: Config folders, ours first.
        asked: Options of groups that the command line names.
    """
    chosen = _chosen(folders) | {group: name for group, name in asked.items() if group in PACKAGES}
    lines: list[str] = []
    taken: dict[str, Option] = {}
    for group in [*PACKAGES, *EXTRA_GROUPS]:
        lines.append(f"  {group}")
        for option in options(group, folders):
            mark = "*" if option.name == chosen.get(group) else ""
            lines.append(f"    {option.name + mark:<20} {option.about}")
            taken |= {group: option} if mark else {}
    return _HELP.format(groups="\n".join(lines), settings="\n".join(_setting_lines(taken)))


def _read(file: Path) -> Option:
    text = file.read_text()
    comment = re.search(r"^# (?!@package)(.*)", text, re.MULTILINE)
    values = yaml.safe_load(text) or {}
    return Option(file.stem, comment[1] if comment else "", values, values.pop("defaults", []))


def _chosen(folders: list[Path]) -> dict[str, str]:
    """The option of each group that is taken when nothing is said."""
    chosen: dict[str, str] = {}
    overridden: dict[str, str] = {}
    pending = [*_read(CONF / "config.yaml").defaults]
    for entry in pending:
        for key, name in entry.items() if isinstance(entry, dict) else ():
            if key.startswith("override /"):
                overridden[key.removeprefix("override /").partition("@")[0]] = name
            elif name is not None and not key.startswith("optional"):
                group = key if (CONF / key).is_dir() else f"training/{key}"
                chosen[group] = name
                pending += [o for opt in options(group, folders) if opt.name == name for o in opt.defaults]
    return chosen | overridden


def _setting_lines(taken: dict[str, Option]) -> list[str]:
    """A line for each setting, with the value that the options taken give it."""
    top = _read(CONF / "config.yaml").values
    values, about = (
        {name: value for name, value in top.items() if name != "hydra"},
        field_paths(ExperimentSpec),
    )
    specs, trees = _specs(), bases()
    for group, option in taken.items():
        place = f"{PACKAGES.get(group, group.partition('/')[0])}."
        for entry in option.defaults:
            base = str(entry).partition("@")[0].removeprefix("/spec/")
            if base in specs:
                about |= field_paths(specs[base], place)
                values |= flat(trees[base], place)
        given = {place + name: value for name, value in option.values.items()} | flat(option.values, place)
        values |= {path: value for path, value in given.items() if path in values}
    lines = []
    for path, value in values.items():
        setting = f"{path}={value if isinstance(value, str) else json.dumps(value)}"
        if path in about:
            lines.append(f"  {setting:<46} {' '.join(about[path].split())}")
    return lines
