"""The door: turns a command line into an `ExperimentSpec`, runs it, and says in one line what is wrong.

Hydra composes the config groups of `conf/`; the specs of `models/` lend them defaults and judge the result.
Must not know: how anything is trained, and torch before a job really starts.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agilerl_exp import catalogue, command_line
from agilerl_exp.errors import AgilerlError, ConfigError, DiskError
from agilerl_exp.models.base import did_you_mean
from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.models.explain import nearest
from agilerl_exp.models.plugins import FORGOTTEN

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_KNOWN = (AgilerlError, HydraException, OmegaConfBaseException)  # a line says it all, no traceback


@dataclass
class _Process:
    """What the jobs that run in this process share with `main`."""

    main_pid: int | None = None
    full_error: bool = False
    typed: list[str] = field(default_factory=list)
    own_thread_variables: frozenset[str] = frozenset()
    jobs: int = 0
    failures: list[str] = field(default_factory=list)
    exit_code: int = 0


_process = _Process()


def main() -> None:
    """Run the command line of this process; ends with the exit code of `errors.py`."""
    _prepare_process()
    try:
        _start(sys.argv[1:])
    except KeyboardInterrupt:
        _say(["interrupted"])
        sys.exit(130)
    except (*_KNOWN, yaml.YAMLError, ValueError, OSError) as error:
        if _process.full_error:
            raise
        _say(explain(error))
        sys.exit(exit_code(error))
    _close()


def register() -> None:
    """Put the specs' defaults and the default output folders where yaml files include them from."""
    store = ConfigStore.instance()
    for name, tree in catalogue.bases().items():
        group, _, leaf = f"spec/{name}".rpartition("/")
        store.store(group=group, name=leaf, node=tree)
    # Neither two processes of one machine nor two of one second may share a folder.
    stamp = f"{datetime.now():%Y-%m-%d/%H-%M-%S-%f}-{os.getpid()}"
    folders = {"run": {"dir": f"outputs/{stamp}"}, "sweep": {"dir": f"multirun/{stamp}"}}
    store.store(group="spec", name="folders", node={"hydra": folders})
    Plugins.instance().register(UserConf)


class UserConf(SearchPathPlugin):
    """Appends `./conf`: it adds options to ours and replaces none of them."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """See the class."""
        for folder in command_line.config_folders([])[1:]:
            search_path.append("user", f"file://{folder}")


def explain(error: BaseException) -> list[str]:
    """Return one line a mistake for an error of ours, of Hydra or of OmegaConf, in the names that were typed."""
    return [command_line.as_typed(line, _process.typed) for line in _lines(error)]


def _lines(error: BaseException) -> list[str]:
    text = str(error)
    if isinstance(error, AgilerlError):
        return text.splitlines() or [type(error).__name__]
    if isinstance(error, MissingConfigException):
        return [_missing_option(error)]
    if isinstance(error, OverrideParseException):
        return [f"{error.override}: cannot be read: {text.splitlines()[0]}; quote it, or see --hydra-help"]
    if isinstance(error, OmegaConfBaseException):
        # The lines after the first name OmegaConf's classes.
        place = f"{error.full_key}: " if error.full_key else ""
        return [place + text.splitlines()[0]]
    if isinstance(error, OSError):
        return [f"{error.filename}: {error.strerror}" if error.filename else text]
    return [_composition_mistake(text)]  # YAML errors too: they name file and line


def _composition_mistake(text: str) -> str:
    unknown = re.match(r"Could not override '([^']+)'", text)
    if unknown:
        path = unknown[1].partition("@")[0]
        return f"{path}: no such setting{nearest(path, catalogue.setting_paths())}"
    ambiguous = re.match(r"Ambiguous value for argument '(.+?)'\n", text)
    if ambiguous:
        return f"{ambiguous[1]}: more than one value; add -m to run each of them, or write a list as [a,b]"
    return " ".join(text.split())


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, AgilerlError):
        return error.exit_code
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return DiskError.exit_code
    return ConfigError.exit_code


def _prepare_process() -> None:
    _process.main_pid = os.getpid()
    _process.full_error = os.environ.get("HYDRA_FULL_ERROR") == "1"
    _process.own_thread_variables = frozenset(_THREAD_VARIABLES) - os.environ.keys()
    # Before numpy or torch is imported: with more threads a second busy process slows a run down many times.
    os.environ.update(dict.fromkeys(_process.own_thread_variables, "1"))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands its errors to us in place of printing them


def _start(arguments: list[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        command_line.import_plugins(command_line.plugins_ahead(arguments))
        chosen = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
        print(catalogue.help_text(command_line.config_folders(arguments), chosen), end="")
        return
    _process.typed = arguments
    arguments = command_line.prepare(arguments)
    _refuse_flags(arguments)
    command_line.import_plugins(command_line.plugins_ahead(arguments))
    register()
    sys.argv[1:] = arguments
    _job()


def _refuse_flags(arguments: list[str]) -> None:
    """Say in one line what Hydra's parser would say with its whole usage."""
    parser = get_args_parser()
    parser.exit_on_error = parser.allow_abbrev = False
    try:
        _, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error.argument_name}: {error.message}") from None
    for argument in unknown[:1]:
        flag = argument.partition("=")[0]
        if not flag.startswith("-"):
            raise ConfigError(f"{argument}: settings stand side by side; write flags before or after them")
        hint = did_you_mean(flag, parser._option_string_actions) or "; see --help"
        raise ConfigError(f"{flag}: no such flag{hint}")


@hydra.main(version_base="1.3", config_path=str(catalogue.CONF), config_name="config")
def _job(cfg: DictConfig) -> float | None:
    _process.jobs += 1
    try:
        return _train(cfg)
    except Exception as error:
        # Elsewhere (a launcher's worker) the launcher reports; here we do, with all failures in view.
        if _process.full_error or os.getpid() != _process.main_pid:
            raise
        _failed(error)
        return None


def _train(cfg: DictConfig) -> float | None:
    config: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    command_line.import_plugins(config["plugins"])
    spec = ExperimentSpec.from_config(config)
    _use_threads(spec.threads)
    from agilerl_exp.training.run import run

    return run(spec, Path(HydraConfig.get().runtime.output_dir), _job_command_line())


def _use_threads(threads: int | None) -> None:
    """Set the threads of the numeric libraries: `threads`, else what the environment says, else one."""
    if threads is not None:
        os.environ.update(dict.fromkeys(_process.own_thread_variables, str(threads)))
    import torch

    torch.set_num_threads(threads or int(os.environ.get("OMP_NUM_THREADS", "1").partition(",")[0]))


def _job_command_line() -> list[str]:
    """What `resume=` starts from; the run keeps it in the job directory."""
    config = HydraConfig.get()
    named = [source.path for source in config.runtime.config_sources if source.provider == "command-line"]
    flags = [f"--config-dir={path}" for path in named]
    if config.job.config_name not in (None, "config"):
        flags.append(f"--config-name={config.job.config_name}")
    return [*flags, *_overrides()]


def _overrides() -> list[str]:
    # As typed: reading the entries one by one would fill in their `${...}`.
    task: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return task


def _failed(error: Exception) -> None:
    """Tell a failure on standard error, and keep it for the closing words."""
    config = HydraConfig.get()
    sweep = config.mode == RunMode.MULTIRUN
    place = f"#{config.job.num} {' '.join(_overrides())}: " if sweep else ""
    known = isinstance(error, _KNOWN)
    lines = explain(error) if known else [f"{type(error).__name__}: {error}"]
    _say([place + line for line in lines])
    if not known:
        _say(["this is no mistake in a setting; the traceback:"])
        traceback.print_exception(error)
    if sweep:
        _process.failures.append(place + lines[0])
    _process.exit_code = exit_code(error) if known and not sweep else AgilerlError.exit_code


def _close() -> None:
    if failures := _process.failures:
        _say([f"{len(failures)} of {_process.jobs} jobs failed; the others are kept:"])
        _say([f"  {failure}" for failure in failures])
    if _process.exit_code:
        sys.exit(_process.exit_code)


def _say(lines: list[str]) -> None:
    for line in lines:
        print(f"agilerl-exp: {line}", file=sys.stderr)


def _missing_option(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not error.options:
        have = [f"spec/{base}" for base in catalogue.bases() if f"spec/{base}".startswith(f"{group}/")]
        text = str(error).splitlines()[0].rstrip(".")
        return f"{text} (have: {', '.join(have)}){FORGOTTEN}" if have else text
    hint = did_you_mean(name, error.options, f"{group}=")
    return f"{group}={name}: no such option{hint} (have: {', '.join(error.options)})"
