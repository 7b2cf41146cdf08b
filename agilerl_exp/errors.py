"""Every exception a user may see, with the exit code the command line returns for it.

Must not know: how errors are printed (that is `app.py`).

    AgilerlError                  1
    |-- ConfigError               2   a setting is wrong; one line a mistake
    |   `-- SpaceError            2   an observation or action space cannot be used
    |-- CheckpointError           2   a checkpoint is missing, damaged, foreign or does not fit
    |-- JobError                  2   a job directory cannot be used (held by another process, other config)
    |-- EnvError                  1   the environment raised, died or returned NaN/Inf
    |-- DivergenceError           1   the loss or weights of a member are not finite
    `-- DiskError                 74  a file could not be written (EX_IOERR)
"""

from __future__ import annotations


class AgilerlError(Exception):
    """Base of all errors raised on purpose. The message is one line a mistake: field, value, allowed, fix."""

    exit_code = 1


class ConfigError(AgilerlError, ValueError):
    """A setting, or a combination of settings, that cannot work."""

    exit_code = 2


class SpaceError(ConfigError):
    """An observation or action space that the algorithm or network cannot take."""


class CheckpointError(AgilerlError):
    """A checkpoint is missing, damaged, made by a newer version, or does not fit the experiment."""

    exit_code = 2


class JobError(AgilerlError):
    """The job directory is held by another process or belongs to another configuration."""

    exit_code = 2


class EnvError(AgilerlError):
    """The environment raised, its worker died, or it returned a value that is not finite."""


class DivergenceError(AgilerlError):
    """The loss or the weights of a member are not finite."""


class DiskError(AgilerlError):
    """A file could not be written; the last good checkpoint is intact."""

    exit_code = 74
