"""Mistakes of a user: one line each on standard error, exit code 2, no traceback, nothing heavy imported."""

from __future__ import annotations

import pytest
from cli import command

HAVE = "(have: n_step, per, per_n_step, standard)"
MISTAKES = [
    (["algo.gama=0.9"], ["algo.gama: no such setting; did you mean algo.gamma?"]),
    (["algo=dqnn"], ["algo=dqnn: no such option; did you mean algo=dqn? (have: dqn)"]),
    (
        ["algo.gamma=2", "training.pop_size=0"],
        [
            "algo.gamma=2: input should be less than or equal to 1",
            "training.pop_size=0: input should be greater",
        ],
    ),
    (
        ["+algo.gama=1", "++training.popsize=3"],
        [
            "algo.gama: no such setting; did you mean algo.gamma?",
            "training.popsize: no such setting; did you mean training.pop_size?",
        ],
    ),
    (["algo.lr=1e-3,1e-4"], ["algo.lr=1e-3,1e-4: more than one value; add -m"]),
    (["--config-dir", "nope"], ["Additional config directory"]),
    (
        ["training.replay_buffer=per"],
        ["training.replay_buffer=per: this is a group of settings, not a value; use buffer=per"],
    ),
    (["algo.name=dqnn"], ["algo.name=dqnn: no such algorithm; did you mean DQN?"]),
    (["buffer=perr"], [f"buffer=perr: no such option; did you mean buffer=per? {HAVE}"]),
    (["training.pop_size=${env.id}"], ["training.pop_size=CartPole-v1: input should be a valid integer"]),
    (["algo.lr=${nope}"], ["algo.lr: Interpolation key 'nope' not found"]),
    (
        ["evolution=none", "evolution.tournament_size=3"],
        [
            "evolution.tournament_size: no such setting; it belongs to another option of its group than the one "
            "that is chosen"
        ],
    ),
    (["pop_size=3"], ["pop_size: no such setting; did you mean training.pop_size?"]),
    (["training/explor=linear"], ["training/explor: no such setting; did you mean training/exploration?"]),
    (["algo.lr=[1"], ["algo.lr=[1: cannot be read"]),
    (["algo.lr="], ["algo.lr=: input should be a valid number"]),
    (["env=gym"], ["env.id=null: no environment"]),
    (["env.id=CartPol-v1"], ["env.id=CartPol-v1"]),
    (["resume=nowhere"], ["resume=nowhere: no job directory"]),
    (["resume=here", "-m"], ["resume=here: goes on with one job; for a sweep give hydra.sweep.dir"]),
    (["plugins=[nowhere.py]"], ["plugins=nowhere.py: no file"]),
    (["plugins=[no_such_module]"], ["plugins=no_such_module: ModuleNotFoundError"]),
    (
        ["training.replay_buffer.memory_size=0"],
        ["training.replay_buffer.memory_size=0: input should be greater"],
    ),
    (
        ["training.replay_buffer.memory_size=5"],
        ["training.replay_buffer.memory_size=5: must be >= algo.batch_size=64"],
    ),
    (
        ["training.memory_size=5"],
        ["training.memory_size: no such setting; did you mean training.replay_buffer.max_size?"],
    ),
    (["--experimental-rerun=x.pickle"], ["--experimental-rerun: refused"]),
    (["--hlep"], ["--hlep: no such flag; did you mean --help?"]),
    (["-x", "seed=1"], ["-x: no such flag; see --help"]),
    (["--cfgg=job"], ["--cfgg: no such flag; did you mean --cfg?"]),
    (["--cfg", "jobs"], ["--cfg/-c: invalid choice: 'jobs' (choose from"]),
    (["seed=1", "--cfg", "job", "algo.lr=1"], ["algo.lr=1: settings stand side by side"]),
    (
        ["algo.name=Mine"],
        ["algo.name=Mine: no such algorithm (have: DQN); is the file that defines it missing"],
    ),
    (["env.config.mode=nan"], ["env.config.mode=NaN: input should be a finite number"]),
    (["env.config={a: {b: [1, nan]}}"], ["env.config.a.b.1=NaN: input should be a finite number"]),
    (["env.config=3"], ["env.config=3: input should be a valid dictionary"]),
]


@pytest.mark.parametrize(("arguments", "lines"), MISTAKES, ids=lambda value: value[0][:40])
def test_a_mistake_is_one_line_and_exit_2(tmp_path, arguments, lines):
    result = command(tmp_path, *arguments)
    said = result.stderr.splitlines()
    assert result.returncode == 2, result.stderr
    assert len(said) == len(lines), result.stderr
    for line, expected in zip(said, lines, strict=True):
        assert line.startswith(f"agilerl-exp: {expected}"), line
    assert not result.stdout


@pytest.mark.slow
def test_an_environment_without_an_end_is_refused_before_training(tmp_path):
    result = command(tmp_path, "env=gym", "env.id=CliffWalking-v1", "hydra.run.dir=job")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(
        "agilerl-exp: training.eval_steps=null: an evaluation episode passed 100,000 steps; give"
    )
    assert not (tmp_path / "job/metrics.jsonl").read_text()


def test_full_error_shows_the_traceback(tmp_path):
    result = command(tmp_path, "algo.gamma=2", HYDRA_FULL_ERROR="1")
    assert result.returncode != 0
    assert "Traceback" in result.stderr
    assert "ConfigError: algo.gamma=2" in result.stderr


def test_a_malformed_yaml_names_file_and_line(tmp_path):
    (tmp_path / "conf/algo").mkdir(parents=True)
    (tmp_path / "conf/algo/mine.yaml").write_text("lr: [1\n")
    result = command(tmp_path, "algo=mine")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "conf/algo/mine.yaml" in result.stderr and "line 1" in result.stderr


def test_a_misspelt_setting_stops_a_sweep_before_its_first_job(tmp_path):
    result = command(tmp_path, "-m", "algo.gama=0.9,0.8", "experiment=smoke")
    assert result.returncode == 2
    assert "agilerl-exp: algo.gama: no such setting; did you mean algo.gamma?" in result.stderr
    assert not list(tmp_path.glob("multirun/**/job.log"))


def test_mistakes_import_neither_torch_nor_gymnasium(tmp_path):
    (tmp_path / "watch.py").write_text(
        "import atexit, sys\n"
        "atexit.register(lambda: print(sorted({'torch', 'gymnasium', 'numpy'} & sys.modules.keys())))\n"
    )
    result = command(tmp_path, "plugins=[watch.py]", "algo.gamma=2")
    assert result.returncode == 2
    assert result.stdout.strip() == "[]"


def test_a_directory_that_cannot_be_made_is_one_line_and_exit_74(tmp_path):
    (tmp_path / "taken").write_text("")
    result = command(tmp_path, "experiment=smoke", "hydra.run.dir=taken/job")
    assert result.returncode == 74
    assert "taken" in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_place_that_cannot_be_written_has_another_cure_than_a_full_disk(tmp_path):
    result = command(tmp_path, "experiment=smoke", "training.checkpoint_path=/proc/x")
    assert result.returncode == 74
    assert result.stderr.startswith("agilerl-exp: cannot write /proc/x")
    assert "make it writable, or choose another place" in result.stderr
    assert "bytes" not in result.stderr and len(result.stderr.splitlines()) == 1
