"""What happens to a command line before Hydra reads it: aliases, open settings, plugins, and `resume=`.

Must not know: Hydra, and what the settings mean.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from agilerl_exp.catalogue import CONF
from agilerl_exp.errors import ConfigError, JobError
from agilerl_exp.models.plugins import import_source

_ALIASES = {"memory_size": "max_size", "population_size": "pop_size"}
_ALIAS = re.compile(rf"^(?P<place>\+{{0,2}}(?:[\w@/]+\.)*)(?P<name>{'|'.join(_ALIASES)})(?==)")
# What an environment or a module of the user takes is not known: each may be added.
_OPEN = re.compile(r"^\+{0,2}(env|algo\.net_config)\.config(?=(\.[^=]+)?=)")


def prepare(arguments: list[str]) -> list[str]:
    """Rewrite a command line into the one that Hydra reads.

    Raises:
        ConfigError: A flag that is refused, or a plugin that cannot be imported.
        JobError: `resume=` names no job directory.
    """
    if any(argument.startswith("--experimental-rerun") for argument in arguments):
        raise ConfigError("--experimental-rerun: refused, it runs code from a pickle; use resume=JOB_DIR")
    return [_plain(argument) for argument in _resumed(arguments)]


def as_typed(line: str, arguments: list[str]) -> str:
    """A message in the names of the arguments, where `prepare` put what an alias stands for."""
    for argument in arguments:
        line = line.replace(_key(_plain(argument)), _key(argument))
    return line


def config_folders(arguments: list[str]) -> list[Path]:
    """All folders with options: ours, `./conf`, `--config-dir`; each once."""
    named = flag_value(arguments, "--config-dir", "-cd")
    folders = [CONF, Path("conf").resolve(), *([Path(named).resolve()] if named else [])]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def flag_value(arguments: list[str], *names: str) -> str | None:
    """The value of a flag, written as `--flag value` or `--flag=value`."""
    for position, argument in enumerate(arguments):
        head, equals, value = argument.partition("=")
        if head in names:
            return value if equals else next(iter(arguments[position + 1 :]), None)
    return None


def import_plugins(names: list[str]) -> None:
    """Import the user's files and modules.

    Raises:
        ConfigError: One of them is missing or fails.
    """
    for name in names:
        try:
            import_source(name)
        except FileNotFoundError as error:
            raise ConfigError(f"plugins={name}: no file {Path(name).resolve()}") from error
        except Exception as error:
            raise ConfigError(
                f"plugins={name}: {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error


def plugins_ahead(arguments: list[str]) -> list[str]:
    """The plugins of a command line, or else of a local overlay: imported before anything is composed."""
    given = [argument.partition("=")[2] for argument in arguments if _key(argument) == "plugins"]
    if given:
        return _plugin_list(given[-1])
    overlays = [folder / "local" / "default.yaml" for folder in config_folders(arguments)]
    found = [yaml.safe_load(file.read_text()) or {} for file in overlays if file.is_file()]
    return next((list(overlay["plugins"]) for overlay in found if overlay.get("plugins")), [])


def _plain(argument: str) -> str:
    argument = _ALIAS.sub(lambda found: found["place"] + _ALIASES[found["name"]], argument)
    return _OPEN.sub(r"++\1.config", argument)


def _resumed(arguments: list[str]) -> list[str]:
    at = next((i for i, argument in enumerate(arguments) if _key(argument) == "resume"), None)
    if at is None:
        return arguments
    name = arguments[at].partition("=")[2].strip("'\"")
    if {"-m", "--multirun"} & set(arguments):
        raise ConfigError(f"resume={name}: goes on with one job; for a sweep give hydra.sweep.dir=DIR again")
    given = [argument for i, argument in enumerate(arguments) if i != at]
    new_keys = {_key(argument) for argument in given}
    saved = _saved(name)
    flags = [entry for entry in saved if entry.startswith("--") and _key(entry) not in new_keys]
    settings = [entry for entry in saved if not entry.startswith("--") and _key(entry) not in new_keys]
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    # Hydra wants all settings side by side.
    first = next((i for i, argument in enumerate(given) if _is_setting(argument)), len(given))
    return [*flags, *given[:first], f"hydra.run.dir='{quoted}'", *settings, *given[first:]]


def _saved(job_dir: str) -> list[str]:
    file = Path(job_dir) / "status.json"
    if not file.is_file():
        raise JobError(f"resume={job_dir}: no job directory (there is no {file.name} in it)")
    try:
        return [str(entry) for entry in json.loads(file.read_text())["overrides"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(
            f"resume={job_dir}: {file.name} is damaged ({type(error).__name__}: {error}); delete it and give the "
            f"job's settings with hydra.run.dir={job_dir} in place of resume: its checkpoints go on"
        ) from error


def _key(argument: str) -> str:
    return argument.partition("=")[0].lstrip("+")


def _is_setting(argument: str) -> bool:
    return "=" in argument and not argument.startswith("-")


def _plugin_list(text: str) -> list[str]:
    return [name.strip(" '\"") for name in text.strip("[] ").split(",") if name.strip()]
