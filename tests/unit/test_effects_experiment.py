"""What the fields of the environment, the tracker and the experiment as a whole do, in numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from effects import effect
from small import contents, job, metrics, ran, spec_of, steps

from agilerl_exp.errors import JobError
from agilerl_exp.training.run import run

OWN = '''
import probe_envs

class Mine(probe_envs.Steps):
    """Reward 3."""

    def reward(self, action):
        return 3.0
'''


@effect("EnvSpec.id", "EnvSpec.config")
def test_the_id_names_the_environment_and_config_goes_to_it():
    loop = ran({"env.id": "probe/Zoo-v0", "env.config": {"kind": "discrete", "length": 9}})
    assert loop.envs.observation_space.n == 4 and loop.envs.observation_space.start == 2
    assert loop.session.returns[0].tolist() == [[9.0]]


@effect("EnvSpec.entrypoint")
def test_an_entrypoint_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    for entrypoint in ("mine.py:Mine", str(tmp_path / "mine.py:Mine")):
        loop = ran({"env.id": None, "env.entrypoint": entrypoint})
        assert loop.session.returns[0].tolist() == [[15.0]]
        assert set(contents(loop.buffer).reward[0].tolist()) == {3.0}


@effect("EnvSpec.wrappers", "WrapperSpec.path", "WrapperSpec.kwargs")
@pytest.mark.parametrize(
    ("wrappers", "reward"),
    [
        (["probe_envs.Added"], 11.0),
        ([{"path": "probe_envs:Added", "kwargs": {"extra": 2}}], 3.0),
        ([{"path": "probe_envs.Added", "kwargs": {"extra": 1}}, "probe_envs.Doubled"], 4.0),
        (["probe_envs.Doubled", {"path": "probe_envs.Added", "kwargs": {"extra": 1}}], 3.0),
    ],
)
def test_wrappers_stand_around_every_copy_the_first_one_innermost(wrappers, reward):
    loop = ran({"env.wrappers": wrappers})
    assert set(contents(loop.buffer).reward[0].tolist()) == {reward}
    assert loop.session.returns[0].tolist() == [[5 * reward]]


@effect("EnvSpec.num_envs")
@pytest.mark.parametrize("num_envs", [1, 3, 16])
def test_num_envs_copies_a_member_each_with_a_seed_of_its_own(num_envs):
    settings = {"env.id": "probe/Echo-v0", "env.config": {"length": 100}, "training.pop_size": 2}
    loop = ran(settings | {"env.num_envs": num_envs})
    drawn = [contents(loop.buffer, member).obs[0, :, 0] for member in range(2)]
    assert [len(np.unique(d)) for d in drawn] == [num_envs, num_envs]
    assert len(np.unique(np.concatenate(drawn))) == 2 * num_envs
    assert loop.session.env_step[0] == [num_envs, num_envs]


@effect("EnvSpec.vectorization")
@pytest.mark.parametrize(
    ("env", "how", "kind"),
    [
        ({}, "auto", "SyncVectorEnv"),
        ({}, "sync", "SyncVectorEnv"),
        ({}, "async", "AsyncVectorEnv"),
        ({"env.id": "CartPole-v1", "env.config": {}, "env.num_envs": 4}, "auto", "CartPoleVectorEnv"),
        ({"env.id": "CartPole-v1", "env.config": {}, "env.num_envs": 3}, "auto", "SyncVectorEnv"),
        ({"env.id": "CartPole-v1", "env.config": {}}, "entry_point", "CartPoleVectorEnv"),
        ({"env.id": "CartPole-v1", "env.config": {}}, "sync", "SyncVectorEnv"),
    ],
)
def test_copies_are_stepped_by_what_was_asked_for(env, how, kind):
    loop = ran({**env, "env.vectorization": how})
    assert kind in {cls.__name__ for cls in type(loop.envs.blocks[0]._env.unwrapped).__mro__}


@effect("EnvSpec.vectorization")
def test_workers_and_this_process_train_to_the_same_bytes(tmp_path):
    for how in ("sync", "async"):
        job(tmp_path / how, {"env.id": "probe/Noisy-v0", "env.vectorization": how})
    one, other = ((tmp_path / how / "metrics.jsonl").read_bytes() for how in ("sync", "async"))
    assert one == other


@effect("TrackerSpec.name")
def test_the_tracker_writes_rows_or_nothing(tmp_path):
    every = {"training.reporting_interval": 10}
    assert len(metrics(job(tmp_path / "rows", every))) == 6 + 2 + 2  # intervals, generations, scores
    job(tmp_path / "none", {"tracker.name": "none", **every})
    assert not (tmp_path / "none" / "metrics.jsonl").exists()
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("rows", "none")]
    assert results[0] == results[1]


@effect("ExperimentSpec.seed")
def test_the_seed_decides_weights_episodes_exploration_and_draws():
    settings = {"env.id": "probe/Echo-v0", "env.config": {"length": 3}, "training.pop_size": 2}
    first, again, other = (ran(settings | {"seed": seed}, weights=True) for seed in (1, 1, 2))
    for part in ("weights", "obs", "action", "index"):
        told = []
        for loop in (first, again, other):
            rows = contents(loop.buffer)
            parts = {
                "weights": loop.session.weights[0],
                "obs": rows.obs,
                "action": rows.action,
                "index": loop.buffer.drawn[0]["batch"].index,
            }
            told.append(parts[part].tobytes())
        assert told[0] == told[1] != told[2], part


@effect("ExperimentSpec.resume_allow")
def test_a_changed_setting_is_refused_unless_it_is_allowed_by_name(tmp_path):
    folder = job(tmp_path / "job", {"training.eps_decay": 0.98})
    longer = {"training.eps_decay": 0.98, "training.max_steps": 96}
    with pytest.raises(JobError, match=r"\ntraining.max_steps: 64 -> 96$"):
        run(spec_of(longer), folder)
    for name in ("training.max_steps", "training"):
        run(spec_of(longer | {"resume_allow": [name]}), folder)
    assert steps(folder / "checkpoints")[-1] == 96
    assert [row["env_step"] for row in metrics(folder, "eval")] == [32, 64, 96]
    assert metrics(folder, "train")[-1]["epsilon"] == pytest.approx(0.98**96, rel=1e-12)


@effect("ExperimentSpec.resume_allow")
def test_an_extended_run_keeps_the_horizon_of_its_schedules(tmp_path):
    settings = {"algo.lr_schedule": "linear", "training.replay_buffer.per_buffer": True}
    folder = job(tmp_path / "job", settings)
    longer = settings | {"training.max_steps": 96, "resume_allow": ["training.max_steps"]}
    run(spec_of(longer), folder)
    state = json.loads((folder / "checkpoints/step-96/loop.json").read_text())
    assert state["horizon"] == 64
    assert len({row["eps_decay"] for row in metrics(folder, "train")}) == 1  # its default follows max_steps
