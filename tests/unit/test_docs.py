"""The texts say what the code does: links, commands, examples, tables, metric keys, exit codes."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agilerl_exp import errors
from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.run.job import Job
from agilerl_exp.training.run import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"^`([\w/.]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"```bash\n(.*?)```", re.DOTALL)
RUN = re.compile(r"(?:\.venv/bin/)?python -m agilerl_exp(?: |$)(.*)")


def outside_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", outside_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    broken = []
    for target in LINK.findall(outside_code(page.read_text())):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        known = there.exists() and (not anchor or anchor in anchors(there.read_text()))
        broken += [] if known else [target]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_pages_are_ascii(page):
    breaches = [n for n, line in enumerate(page.read_text().splitlines(), 1) if not line.isascii()]
    assert not breaches


def commands(page: Path) -> list[list[str]]:
    """The arguments of every documented start."""
    found = [shlex.split(line.partition("&& ")[2] or line, comments=True) for line in shell_lines(page)]
    starts = [RUN.match(" ".join(map(shlex.quote, words))) for words in found]
    return [shlex.split(start[1]) for start in starts if start]


def shell_lines(page: Path) -> list[str]:
    return [line for block in SHELL.findall(page.read_text()) for line in block.splitlines()]


@pytest.fixture
def examples(tmp_path):
    """A folder with the files that the README tells the reader to write, and a job to resume."""
    for name, text in NAMED_FILE.findall((ROOT / "README.md").read_text()):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    job = tmp_path / "outputs/DAY/TIME"
    job.mkdir(parents=True)
    (job / "status.json").write_text('{"overrides": ["algo=dqn", "buffer=per"]}')
    return tmp_path


def test_documented_commands_compose_and_validate(examples):
    told = [arguments for page in PAGES for arguments in commands(page)]
    asked = [arguments for arguments in told if "--help" not in arguments]
    assert len(asked) > 20
    assert ["algo=dqn", "buffer=per"] in asked
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests/documents.py")],
        cwd=examples,
        input=json.dumps([*asked, ["algo.gama=1"], ["algo.gamma=2"]]),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    *mistakes, first_control, second_control = json.loads(result.stdout)
    assert first_control and second_control  # the check can fail
    wrong = {" ".join(a): mistake for a, mistake in zip(asked, mistakes, strict=True) if mistake}
    assert not wrong


def test_the_library_example_runs(examples):
    script = examples / "library.py"
    short = script.read_text().replace("20_000", "600").replace("=5,", "=1,").replace("loop=10", "loop=1")
    assert short.count("600") == 1
    script.write_text(short)
    result = subprocess.run([sys.executable, script], cwd=examples, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    score, actions = result.stdout.splitlines()
    assert float(score) >= 8
    assert re.fullmatch(r"\[[01]( [01]){7}\]", actions)
    assert (examples / "agent/manifest.json").is_file()


TRAIN_PLUGIN = """
from pathlib import Path
import mine
from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.training.run import run
training = {"max_steps": 40, "reporting_interval": 40, "eval_steps": 9}
for factor in (0.1, 1.0):
    algo = {"name": "SmallStep", "factor": factor, "batch_size": 16, "learn_step": 40}
    config = {"algo": algo, "env": {"id": "CartPole-v1", "num_envs": 4}, "training": training}
    run(ExperimentSpec.from_config(config), Path(str(factor)))
"""


def test_the_plugin_example_trains_by_its_own_loss(examples):
    """Ten times the factor is ten times the first loss."""
    command = [sys.executable, "-c", TRAIN_PLUGIN]
    result = subprocess.run(command, cwd=examples, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    first = [(examples / f"{factor}/metrics.jsonl").read_text().splitlines()[0] for factor in (0.1, 1.0)]
    small, large = (json.loads(row)["loss"] for row in first)
    assert large == pytest.approx(10 * small)
    assert small > 0


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generated_docs", ROOT / "scripts/docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_generated_tables_are_up_to_date(generator, page):
    assert page.read_text() == generator.filled(page.read_text()), "run .venv/bin/python scripts/docs.py"


def test_generated_tables_say_what_the_specs_say(generator):
    rows = generator.table("hyperparameters dqn")
    assert "| `algo.gamma` | `0.99` |  | 0.9 to 0.9999, log1m | Discount of an env step. |" in rows
    assert "| `algo.loss` | `mse` |" in rows
    settings = generator.table("settings training")
    assert "| `training.max_steps` | `50000` (spec: `1000000`) | integer >= 1 | Env steps" in settings
    assert "| `buffer` | `training.replay_buffer` | `per` | Prioritized replay |" in generator.table(
        "options"
    )


def test_every_algorithm_has_a_page_with_its_table():
    from agilerl_exp.models.algo import ALGO_REGISTRY

    ours = [
        n for n in ALGO_REGISTRY.names() if ALGO_REGISTRY.get(n).spec_cls.__module__.startswith("agilerl_exp")
    ]
    for name in ours:
        page = ROOT / f"docs/algos/{name.lower()}.md"
        assert f"<!-- table hyperparameters {name.lower()} -->" in page.read_text()


def documented(title: str) -> set[str]:
    """First column of the table under a heading of docs/metrics.md."""
    text = (ROOT / "docs/metrics.md").read_text()
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section, title
    return set(re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE))


@pytest.fixture(scope="module")
def finished_job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    config = {
        "algo": {"name": "DQN", "batch_size": 8, "net_config": {"hidden_size": [8]}},
        "env": {"id": "CartPole-v1", "num_envs": 4},
        "training": {
            "max_steps": 100,
            "evo_steps": 50,
            "eval_steps": 20,
            "replay_buffer": {"per_buffer": True},
        },
    }
    run(ExperimentSpec.from_config(config), folder)
    return folder


def keys(file: Path, kind: str | None = None) -> set[str]:
    text = file.read_text()
    rows = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else [json.loads(text)]
    return set().union(*(row for row in rows if kind in (None, row.get("kind"))))


def test_documented_keys_are_those_that_a_run_writes(finished_job):
    assert documented("metrics.jsonl: training rows") == keys(finished_job / "metrics.jsonl", "train")
    assert documented("metrics.jsonl: evaluation rows") == keys(finished_job / "metrics.jsonl", "eval")
    for name in ("timing.jsonl", "result.json", "status.json", "run_info.json"):
        assert documented(name) == keys(finished_job / name), name


def test_the_files_of_a_job_directory_are_documented(finished_job):
    readme = (ROOT / "README.md").read_text()
    written = {path.name for path in finished_job.iterdir()} - {".lock"}
    assert not {name for name in written if name not in readme}
    resume = (ROOT / "docs/resume.md").read_text()
    (step, *_) = sorted(finished_job.glob("checkpoints/step-*"), reverse=True)
    stems = {path.stem for path in step.iterdir()} - {"manifest"}
    assert not {stem for stem in stems if f"| `{stem}` |" not in resume}


def test_exit_codes_are_those_of_the_errors():
    told = dict(
        re.findall(r"^\| `(\w+Error)` \| (\d+) \|", (ROOT / "docs/resume.md").read_text(), re.MULTILINE)
    )
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.AgilerlError)]
    assert told == {kind.__name__: str(kind.exit_code) for kind in kinds}


def test_settings_that_may_differ_on_resume_are_documented():
    from agilerl_exp.models import experiment

    section = (
        (ROOT / "docs/resume.md").read_text().partition("**Settings.**")[2].partition("**One process.**")[0]
    )
    sentence = section.partition("Others are refused")[0]
    assert set(re.findall(r"`([\w.]+)`", sentence)) == experiment._OUTSIDE_FINGERPRINT


def test_states_of_a_job_are_documented():
    text = (ROOT / "docs/metrics.md").read_text()
    assert all(f"`{state}`" in text for state in re.findall(r"[A-Z]{6,}", Job.__doc__ or ""))


def test_the_figure_of_a_batch_is_the_same_in_both_pages():
    figures = [
        re.search(r"```text\n(conf/\*\.yaml.*?)```", (ROOT / n).read_text(), re.DOTALL) for n in NAMES[:2]
    ]
    assert figures[0] and figures[1] and figures[0][1] == figures[1][1]
