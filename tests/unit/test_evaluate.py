"""Whether an episode ends is tried before training, on the environments of an evaluation."""

import pytest
from gymnasium.vector import AutoresetMode
from probe_envs import Batch

from agilerl_exp.envs import MemberEnvs, make_member_envs
from agilerl_exp.errors import ConfigError, EnvError
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.training.evaluate import Evaluator
from agilerl_exp.training.run import run


def evaluator(name: str, wrappers: tuple = (), **config) -> Evaluator:
    spec = EnvSpec(id=f"probe/{name}-v0", config=config, wrappers=list(wrappers), vectorization="sync")
    return Evaluator(lambda member, generation, episodes: make_member_envs(spec, range(episodes)), 2, None)


@pytest.fixture(autouse=True)
def short(monkeypatch) -> None:
    monkeypatch.setattr("agilerl_exp.envs.episodes.ENDLESS", 50)


def test_an_episode_that_ends_is_let_through() -> None:
    evaluator("Steps", cuts=[49]).refuse_endless()
    evaluator("Legal").refuse_endless()
    limit = {"path": "gymnasium.wrappers.TimeLimit", "kwargs": {"max_episode_steps": 9}}
    evaluator("Steps", (limit,)).refuse_endless()


def test_an_episode_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.eval_steps=null: .* passed 50 steps; give"):
        evaluator("Steps").refuse_endless()


def test_a_failure_of_the_environment_is_told_as_such() -> None:
    with pytest.raises(EnvError, match="boom"):
        evaluator("Breaks", n=2).refuse_endless()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_an_environment_that_exists_as_a_vector_only_is_tried_too(mode: AutoresetMode) -> None:
    Evaluator(lambda *_: MemberEnvs(Batch(mode)), 2, None).refuse_endless()


def test_a_run_tries_it_before_it_trains(tmp_path) -> None:
    config = {"algo": {"name": "DQN"}, "env": {"id": "CliffWalking-v1"}}
    with pytest.raises(ConfigError, match="an evaluation episode passed 50 steps") as caught:
        run(ExperimentSpec.from_config(config), tmp_path)
    assert caught.value.exit_code == 2 and not (tmp_path / "metrics.jsonl").read_text()
    assert not list(tmp_path.glob("checkpoints/*"))
