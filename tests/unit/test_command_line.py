"""What a command line becomes before Hydra reads it."""

from __future__ import annotations

import json

import pytest

from agilerl_exp.command_line import config_folders, flag_value, plugins_ahead, prepare
from agilerl_exp.errors import ConfigError, JobError


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("training.replay_buffer.memory_size=5", "training.replay_buffer.max_size=5"),
        ("+training.replay_buffer.memory_size=5", "+training.replay_buffer.max_size=5"),
        ("training.population_size=1,4", "training.pop_size=1,4"),
        ("population_size=4", "pop_size=4"),
        ("training.my_population_size=4", "training.my_population_size=4"),
        ("env.id=memory_size=3", "env.id=memory_size=3"),
        ("env.config.size=5", "++env.config.size=5"),
        ("+env.config.a.b=5", "++env.config.a.b=5"),
        ("env.config={a: 1}", "++env.config={a: 1}"),
        ("env.configs.a=1", "env.configs.a=1"),
        ("algo.net_config.config.units=5", "++algo.net_config.config.units=5"),
        ("-m", "-m"),
    ],
)
def test_aliases_and_open_settings(given, read):
    assert prepare([given]) == [read]


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    saved = ["--config-dir=/elsewhere", "buffer=per", "seed=9", "training.eps_decay=${algo.gamma}"]
    (tmp_path / "job/status.json").write_text(json.dumps({"overrides": saved}))
    return tmp_path


def test_resume_alone_is_the_saved_command_line_in_the_saved_place(job):
    assert prepare(["resume=job"]) == [
        "--config-dir=/elsewhere",
        "hydra.run.dir='job'",
        "buffer=per",
        "seed=9",
        "training.eps_decay=${algo.gamma}",
    ]


def test_what_is_given_anew_replaces_what_was_saved(job):
    assert prepare(["--cfg", "job", "++seed=4", "resume=job", "--resolve"]) == [
        *("--config-dir=/elsewhere", "--cfg", "job"),
        *("hydra.run.dir='job'", "buffer=per", "training.eps_decay=${algo.gamma}"),
        *("++seed=4", "--resolve"),
    ]


def test_a_folder_with_quotes_stays_one_value(job):
    (job / "job").rename(job / "it's mine")
    assert prepare(['resume="it\'s mine"'])[1] == r"hydra.run.dir='it\'s mine'"


@pytest.mark.parametrize("content", ["", "[]", '{"state": 1}', "\xff"])
def test_an_unreadable_job_is_refused(job, content):
    (job / "job/status.json").write_text(content, encoding="latin-1")
    with pytest.raises(JobError, match=r"resume=job: status.json is damaged .*; delete it and .*run.dir=job"):
        prepare(["resume=job"])


def test_what_is_no_job_or_no_single_job_is_refused(job):
    with pytest.raises(JobError, match="resume=conf: no job directory"):
        prepare(["resume=conf"])
    with pytest.raises(ConfigError, match="for a sweep"):
        prepare(["-m", "resume=job"])
    with pytest.raises(ConfigError, match="pickle"):
        prepare(["--experimental-rerun", "x.pickle"])


def test_flags_are_read_in_both_spellings():
    assert flag_value(["a=1", "--config-dir", "x"], "--config-dir", "-cd") == "x"
    assert flag_value(["-cd=x"], "--config-dir", "-cd") == "x"
    assert flag_value(["config-dir=x"], "--config-dir", "-cd") is None


def test_folders_are_ours_then_the_users(job):
    (job / "conf").mkdir()
    (job / "more").mkdir()
    names = [folder.name for folder in config_folders(["--config-dir", "more"])]
    assert names == ["conf", "conf", "more"]
    assert config_folders(["--config-dir", "absent"])[1:] == [job / "conf"]


def test_plugins_come_from_the_command_line_or_else_from_the_overlay(job):
    (job / "conf/local").mkdir(parents=True)
    (job / "conf/local/default.yaml").write_text("# @package _global_\nplugins: [a.py, b]\n")
    assert plugins_ahead([]) == ["a.py", "b"]
    assert plugins_ahead(["plugins=[c.py, 'd e.py']"]) == ["c.py", "d e.py"]
    assert plugins_ahead(["+plugins=[]"]) == []
