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
from agilerl_exp.models.experiment import ExperimentSpec, field_paths
from agilerl_exp.models.explain import PACKAGES as PACKAGES
from agilerl_exp.models.network import MlpSpec
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
    "network/mlp": MlpSpec,
    "training": TrainingSpec,
    "buffer": ReplayBufferSpec,
    "env": EnvSpec,
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
    trees = {name: cls.model_construct().model_dump(mode="json") for name, cls in _SPECS.items()}
    for name in ALGO_REGISTRY.names():
        fields = ALGO_REGISTRY.get(name).spec_cls.model_construct().model_dump(mode="json")
        trees[f"algo/{name.lower()}"] = {"name": name, **fields}
    filled = {package.rpartition(".")[2] for package in PACKAGES.values() if "." in package}
    return {name: {key: v for key, v in tree.items() if key not in filled} for name, tree in trees.items()}


def setting_paths() -> list[str]:
    """The dotted paths of everything that a command line can set, and the names of the groups."""
    specs = [ALGO_REGISTRY.get(name).spec_cls for name in ALGO_REGISTRY.names()]
    fields = [*field_paths(ExperimentSpec), *(path for spec in specs for path in field_paths(spec, "algo."))]
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
    lines = []
    for group in [*PACKAGES, *EXTRA_GROUPS]:
        lines.append(f"  {group}")
        for option in options(group, folders):
            mark = "*" if option.name == chosen.get(group) else ""
            lines.append(f"    {option.name + mark:<20} {option.about}")
    return _HELP.format(groups="\n".join(lines), settings="\n".join(_setting_lines(folders, chosen)))


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
                option = _option(group, name, folders)
                pending += option.defaults if option else []
    return chosen | overridden


def _setting_lines(folders: list[Path], chosen: dict[str, str]) -> list[str]:
    lines = [_line("", name, ExperimentSpec, value) for name, value in _top_settings().items()]
    classes = {"algo": _algo_class(chosen["algo"], folders)}
    classes |= {name.partition("/")[0]: cls for name, cls in _SPECS.items()}
    for group, cls in classes.items():
        shown: dict[str, Any] = {}
        for option_group in (group, f"{group}/exploration"):
            found = _option(option_group, chosen.get(option_group), folders)
            shown |= found.values if found else {}
        lines += _spec_lines(f"{PACKAGES[group]}.", cls, shown)
    return lines


def _algo_class(name: str, folders: list[Path]) -> type[Spec]:
    """The spec class whose defaults an option of `algo/` includes."""
    option = _option("algo", name, folders)
    for entry in option.defaults if option else []:
        for known in ALGO_REGISTRY.names():
            if str(entry).partition("@")[0] == f"/spec/algo/{known.lower()}":
                return ALGO_REGISTRY.get(known).spec_cls
    return AlgorithmSpec


def _option(group: str, name: str | None, folders: list[Path]) -> Option | None:
    return next((option for option in options(group, folders) if option.name == name), None)


def _spec_lines(prefix: str, cls: type[Spec], shown: dict[str, Any]) -> list[str]:
    lines = []
    for name, field in cls.model_fields.items():
        inner = field.annotation
        if prefix + name in PACKAGES.values():
            continue
        if isinstance(inner, type) and issubclass(inner, Spec):
            lines += _spec_lines(f"{prefix}{name}.", inner, {})
        else:
            value = shown.get(name, field.get_default(call_default_factory=True))
            lines.append(_line(prefix, name, cls, value))
    return lines


def _line(prefix: str, name: str, cls: type[Spec], value: Any) -> str:
    about = " ".join((cls.model_fields[name].description or "").split())
    shown = value if isinstance(value, str) else json.dumps(value)
    return f"  {f'{prefix}{name}={shown}':<46} {about}"


def _top_settings() -> dict[str, Any]:
    return {key: value for key, value in _read(CONF / "config.yaml").values.items() if key != "hydra"}
