"""Evaluation plays exactly the episodes asked for, without favour for short ones."""

import gymnasium as gym
import numpy as np
import probe_envs
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from agilerl_exp.envs import MemberEnvs, make_member_envs, play
from agilerl_exp.errors import ConfigError
from agilerl_exp.models.env import EnvSpec


def make(num_envs: int, name: str = "Steps", **config) -> MemberEnvs:
    spec = EnvSpec(id=f"probe/{name}-v0", config=config, vectorization="sync")
    return make_member_envs(spec, list(range(num_envs)))


def still(obs, mask) -> np.ndarray:
    lead = (obs if isinstance(obs, np.ndarray) else next(iter(obs.values()))).shape[:2]
    return np.zeros(lead, int)


def test_short_episodes_are_not_favoured() -> None:
    returns, lengths = play(still, [make(2, cuts=[2, 50])], episodes=4)
    assert returns.mean() == 26.0 and returns.dtype == np.float64
    assert sorted(lengths[0].tolist()) == [2, 2, 50, 50] and lengths.dtype == np.int64


@pytest.mark.parametrize("num_envs", [1, 2, 3, 8])
def test_exactly_the_episodes_asked_for_with_their_full_length(num_envs: int) -> None:
    returns, lengths = play(still, [make(num_envs, cuts=[3])] * 1, episodes=5)
    assert returns.tolist() == [[3.0] * 5] and lengths.tolist() == [[3] * 5]


def test_reset_slots_of_next_step_environments_are_not_counted() -> None:
    returns, lengths = play(still, [MemberEnvs(probe_envs.Batch(AutoresetMode.NEXT_STEP))], episodes=5)
    assert lengths.tolist() == [[2, 2, 2, 3, 3]]
    assert returns.tolist() == [[300.0] * 3 + [600.0] * 2]


def test_blocks_act_together_and_finished_ones_are_left_alone() -> None:
    shapes, blocks = [], [make(2, cuts=[2]), make(2, cuts=[7])]

    def act(obs, mask):
        shapes.append(obs.shape)
        return np.zeros(obs.shape[:2], int)

    _, lengths = play(act, blocks, episodes=2)
    assert lengths.tolist() == [[2, 2], [7, 7]]
    assert shapes == [(2, 2, 2)] * 7
    assert blocks[0].state_dict()["steps"] == 2


def test_each_block_gets_its_own_actions_and_masks() -> None:
    blocks = [make(2, "Legal", length=5), make(2, "Legal", length=5)]
    returns, _ = play(lambda obs, mask: mask.argmax(-1), blocks, episodes=3)
    assert (returns == 5.0).all()
    offset = [make(1, "Offset", cuts=[2]), make(1, "Offset", cuts=[2])]
    returns, _ = play(lambda obs, mask: np.array([[0], [2]]), offset, episodes=1)
    assert returns.tolist() == [[10.0], [14.0]]


def test_a_cap_ends_one_episode_and_the_next_starts_fresh() -> None:
    returns, lengths = play(still, [make(2, cuts=[4, 9])], episodes=4, max_steps=6)
    assert lengths.tolist() == [[4, 6, 4, 6]] and returns.tolist() == [[4.0, 6.0, 4.0, 6.0]]


def test_an_environment_that_cannot_restart_one_copy_is_waited_for() -> None:
    block = MemberEnvs(probe_envs.Batch(AutoresetMode.NEXT_STEP))
    _, lengths = play(still, [block], episodes=4, max_steps=2)
    assert lengths.tolist() == [[2, 2, 2, 2]]
    seen = block.state_dict()["steps"]
    assert seen == 6  # copy 1: two steps counted, the third waited for, a reset slot, two more counted


def test_an_endless_episode_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agilerl_exp.envs.episodes.ENDLESS", 50)
    with pytest.raises(ConfigError, match=r"training\.eval_steps"):
        play(still, [make(2)], episodes=1)
    assert play(still, [make(2)], episodes=2, max_steps=60)[1].tolist() == [[60, 60]]
    assert play(still, [make(2, cuts=[50])], episodes=2)[1].tolist() == [[50, 50]]


def test_a_member_may_bring_a_wrapped_gymnasium_environment() -> None:
    class Plain(VectorWrapper):
        pass

    inner = SyncVectorEnv([lambda: gym.make("probe/Steps-v0", cuts=[3])] * 2)
    assert play(still, [MemberEnvs(Plain(inner), seeds=[1, 2])], episodes=3)[1].tolist() == [[3, 3, 3]]
