"""The job directory: who holds it, what runs in it, how that ended.

Must not know: Hydra, the loops, what a checkpoint holds.

    spec.json        the validated experiment          .lock            see `run.lock`
    run_info.json    commit, versions, command line    git.diff         uncommitted changes at the start
    status.json      state, step, fingerprint, holder  result.json      what `finish` was given
    job.log          errors of the run

All names are relative to the directory, so that it may be moved.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import agilerl_exp
from agilerl_exp.errors import AgilerlError, ConfigError, DiskError, JobError
from agilerl_exp.run import durable, state
from agilerl_exp.run.environment import environment
from agilerl_exp.run.lock import Lock

_GIT_SECONDS = 5
_CURE = "delete it and give the job's settings again: its checkpoints go on"
_MAX_DIFF_BYTES = 4 << 20


class Job:
    """Context manager: holds the directory, keeps `status.json` true.

    Leaving it sets the state: COMPLETED after `finish`, FAILED on an exception, INTERRUPTED otherwise, also
    on SystemExit and KeyboardInterrupt.

    Args:
        job_dir: made when absent.
        config: the validated experiment as JSON values.
        fingerprint: of what a resumed run must share with the one it goes on with.
        diff: given the directory's earlier config and its fingerprint, one line for each difference that is not
            allowed; ConfigError when the two do not belong together.
        overrides: the command line's, for the record.
        checkpoint_dir: an absolute directory outside, held as well.

    Attributes:
        complete: the directory holds the finished run of this very experiment; entering changed nothing.

    Raises:
        JobError: (on entering) held by another process, damaged, or made with another config: one line a difference.
        DiskError: (here and later) a file could not be written.
    """

    def __init__(
        self,
        job_dir: Path,
        config: Mapping[str, Any],
        fingerprint: str,
        *,
        diff: Callable[[dict[str, Any], str | None], list[str]],
        overrides: Sequence[str] = (),
        checkpoint_dir: Path | None = None,
    ) -> None:
        self.job_dir = job_dir
        self.complete = False
        self._config, self._fingerprint, self._diff = config, fingerprint, diff
        self._overrides = list(overrides)
        folders = [job_dir] if checkpoint_dir is None else [job_dir, checkpoint_dir]
        self._folders = list(dict.fromkeys(folder.resolve() for folder in folders))
        self._held = ExitStack()
        self._status: dict[str, Any] = {}
        self._written = 0.0

    def __enter__(self) -> Job:
        """Take the directory, compare configs, write who runs what."""
        with ExitStack() as held:
            for folder in self._folders:
                with durable.disk_errors(folder, 0):
                    folder.mkdir(parents=True, exist_ok=True)
                held.callback(Lock(folder).release)
            self._open()
            self._held = held.pop_all()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _: object) -> None:
        """Write how it ended, give the directory back."""
        try:
            if not self.complete and self._status["state"] == "RUNNING":
                # A disk that is full already has its error on the way; this one must not hide it.
                with suppress(DiskError):
                    if isinstance(error, Exception):
                        self._write_status(state="FAILED", error=_one_line(error))
                        self._log(error)
                    else:
                        self._write_status(state="INTERRUPTED", error=None)
        finally:
            self._held.close()

    def update(self, **fields: Any) -> None:
        """Set JSON fields (`step=...`) of status.json; the disk sees them at most once a second."""
        self._status.update(fields)
        if time.monotonic() - self._written >= 1:
            self._write_status()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json, then the state COMPLETED."""
        self._write("result.json", result)
        self._write_status(state="COMPLETED")

    def _open(self) -> None:
        before = self.read("status.json")
        done = before.get("state") == "COMPLETED" and (self.job_dir / "result.json").is_file()
        if done and before.get("fingerprint") == self._fingerprint:
            self._status, self.complete = before, True
            return
        config = self.read("spec.json")
        # A job that failed before its first checkpoint (a mistake found late) holds nothing: it may start over.
        empty = before.get("state") == "FAILED" and not before.get("step")
        other = config and before.get("fingerprint") != self._fingerprint and not empty
        if other and (lines := self._differences(config, before)):
            head = f"{self.job_dir}: made with another config; name what may differ in resume_allow"
            raise JobError("\n".join([head, *lines]))
        self._write("spec.json", self._config)
        self._write_run_info()
        now = _now()
        self._write_status(
            state="RUNNING",
            step=before.get("step", 0),
            fingerprint=self._fingerprint,
            overrides=self._overrides,
            pid=os.getpid(),
            host=socket.gethostname(),
            created=before.get("created", now),
            started=now,
            error=None,
        )

    def _differences(self, config: dict[str, Any], before: dict[str, Any]) -> list[str]:
        try:
            return self._diff(config, before.get("fingerprint"))
        except ConfigError as error:
            raise self._damaged("spec.json", error) from None

    def _write_run_info(self) -> None:
        sha, changes = _git("rev-parse", "HEAD"), _git("diff", "HEAD")
        git = {"git_sha": sha.decode().strip() if sha else None, "git_changed": bool(changes)}
        made_by = {"command": sys.argv, **git, "source_sha256": _source_hash(), **environment()}
        self._write("run_info.json", made_by)
        if changes:
            durable.replace_file(self.job_dir / "git.diff", changes[:_MAX_DIFF_BYTES])

    def _write_status(self, **fields: Any) -> None:
        self._status = {**self._status, **fields, "updated": _now()}
        self._written = time.monotonic()
        self._write("status.json", self._status)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(state.plain(content), indent=1, allow_nan=False)
        durable.replace_file(self.job_dir / name, f"{text}\n".encode())

    def _log(self, error: BaseException | None) -> None:
        text = str(error) if isinstance(error, AgilerlError) else "".join(traceback.format_exception(error))
        path = self.job_dir / "job.log"
        with durable.disk_errors(path, len(text)), path.open("a") as stream:
            stream.write(f"{_now()} {text.rstrip()}\n")

    def read(self, name: str) -> dict[str, Any]:
        """The content of a JSON file of the directory; {} where there is none.

        Raises:
            JobError: it is damaged.
        """
        try:
            content = json.loads((self.job_dir / name).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._damaged(name, error) from None
        if not isinstance(content, dict):
            raise self._damaged(name, "not an object")
        return content

    def _damaged(self, name: str, why: object) -> JobError:
        text = str(why).partition("\n")[0]
        return JobError(f"{self.job_dir / name}: damaged, or of another version ({text}); {_CURE}")


def _one_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text if isinstance(error, AgilerlError) else f"{type(error).__name__}: {text}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _git(*words: str) -> bytes | None:
    """Output of git in the current directory; None where it fails or takes too long."""
    command = ["git", "--no-optional-locks", *words]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, check=True, timeout=_GIT_SECONDS).stdout
    return None


def _source_hash() -> str:
    """sha256 over the package's own sources: tells two versions apart where there is no commit."""
    digest = hashlib.sha256()
    root = Path(agilerl_exp.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
