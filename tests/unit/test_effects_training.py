"""What each field of TrainingSpec does, in numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from effects import effect
from small import contents, job, loop_of, metrics, ran, steps

from agilerl_exp.run.checkpoint import read_checkpoint

EVERY_STEP = {"env.num_envs": 1, "algo.learn_step": 1}
NEVER_LEARN = {"algo.learn_step": 64}


@effect("TrainingSpec.max_steps")
@pytest.mark.parametrize(("num_envs", "end"), [(1, 64), (2, 64), (3, 66), (100, 100)])
def test_every_member_trains_to_the_end_of_the_vector_step_that_reaches_max_steps(num_envs, end):
    loop = ran({"env.num_envs": num_envs, "training.pop_size": 2})
    assert loop.env_step.tolist() == [end, end]
    assert loop.buffer.sizes.tolist() == [end, end]  # evaluation stored and counted nothing


@effect("TrainingSpec.evo_steps")
@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"training.max_steps": 100, "training.evo_steps": 40}, [40, 80, 100]),
        ({"training.max_steps": 30, "training.evo_steps": 10, "env.num_envs": 3}, [12, 21, 30]),
        ({"training.max_steps": 100, "training.evo_steps": None}, [100]),
        (
            {
                "training.max_steps": 20_500,
                "training.evo_steps": None,
                "env.num_envs": 100,
                "algo.learn_step": 20_000,
                "training.reporting_interval": 20_000,
            },
            [10_000, 20_000, 20_500],
        ),
    ],
)
def test_a_generation_ends_every_evo_steps_and_the_last_partial_one_is_scored(tmp_path, settings, ends):
    rows = metrics(job(tmp_path, settings), "eval")
    assert [row["env_step"] for row in rows] == ends
    assert [row["generation"] for row in rows] == list(range(1, len(ends) + 1))


@effect("TrainingSpec.pop_size")
def test_pop_size_members_train_each_with_its_own_weights_and_ring():
    loop = ran({"training.pop_size": 3})
    weights = [agent.cohort.bank.weights[agent.row].numpy() for agent in loop.population.agents]
    assert len(loop.population) == 3 and loop.env_step.tolist() == [64] * 3
    assert loop.session.updates[-1] == [15] * 3  # every 4 steps, the first when 8 rows are there
    assert len({w.tobytes() for w in weights}) == 3
    actions = {contents(loop.buffer, member).action.tobytes() for member in range(3)}
    assert len(actions) == 3


@effect("TrainingSpec.eval_steps")
@pytest.mark.parametrize(("cap", "score"), [(7, 7.0), (None, 50.0), (80, 50.0)])
def test_eval_steps_caps_an_episode(cap, score):
    loop = ran({"training.eval_steps": cap, "env.config": {"cuts": [50]}, "training.eval_loop": 3})
    assert [returns.tolist() for returns in loop.session.returns] == [[[score] * 3]] * 2


@effect("TrainingSpec.eval_loop")
@pytest.mark.parametrize("episodes", [1, 3, 40])
def test_exactly_eval_loop_episodes_a_member_on_environments_of_their_own(tmp_path, episodes):
    settings = {"training.eval_loop": episodes, "training.pop_size": 2, "env.config": {"ends": [2, 50]}}
    folder = job(tmp_path, settings)
    rows = metrics(folder, "eval")
    assert [row["eval_episodes"] for row in rows] == [episodes] * 4
    # 20 copies at most: those that play twice see a short and a long episode
    assert {row["fitness"] for row in rows} == {26.0 if episodes == 40 else 2.0}
    steps_played = 40 * 26 if episodes == 40 else 2 * episodes
    assert rows[-1]["total_env_steps"] == 2 * 64 + 2 * 2 * steps_played
    assert metrics(folder, "train")[-1]["env_step"] == 64


@effect("TrainingSpec.replay_buffer")
def test_the_ring_is_that_of_the_training_block_or_the_default_one():
    assert loop_of({"training.replay_buffer": {"max_size": 77}}).buffer.max_size == 77
    default = loop_of({"training.replay_buffer": None}).buffer
    assert (default.max_size, default.n_step, default.alpha) == (100_000, 1, None)


@effect("TrainingSpec.target_score")
@pytest.mark.parametrize(("target", "end"), [(5.0, 32), (4.0, 32), (5.001, 64), (None, 64)])
def test_the_run_stops_at_the_evaluation_that_reaches_the_target(target, end):
    loop = ran({"training.target_score": target})  # every episode returns 5
    assert loop.env_step.tolist() == [end] and loop.generation == end // 32


@effect("TrainingSpec.target_score")
def test_the_member_that_reaches_the_target_is_the_result(tmp_path):
    settings = {"env.id": "probe/Offset-v0", "env.config": {"cuts": [1]}, "training.pop_size": 5}
    fitness = [row["fitness"] for row in metrics(job(tmp_path / "all", settings), "eval")[:5]]
    assert len(set(fitness)) > 1  # 5, 6 or 7: the favourite action of an untrained network
    folder = job(tmp_path / "stopped", settings | {"training.target_score": max(fitness)})
    result = json.loads((folder / "result.json").read_text())
    assert result["best_member"] == int(np.argmax(fitness)) and result["env_steps"] == [32] * 5
    assert result["score"] == result["member_scores"][result["best_member"]] == max(fitness)


@effect("TrainingSpec.learning_delay")
@pytest.mark.parametrize(
    ("settings", "delay", "first", "updates"),
    [
        (EVERY_STEP, 30, 30, 35),
        (EVERY_STEP, 0, 8, 57),  # the ring holds a batch of 8
        ({"env.num_envs": 2, "algo.learn_step": 1}, 31, 32, 34),  # two updates a vector step
        ({"env.num_envs": 2, "algo.learn_step": 4}, 30, 32, 9),
        ({"env.num_envs": 1, "algo.learn_step": 4}, 63, 64, 1),
    ],
)
def test_the_first_update_comes_at_the_exact_step_and_nothing_is_caught_up(settings, delay, first, updates):
    watch = ran({**settings, "training.learning_delay": delay}).session
    assert watch.first_update() == first
    assert watch.updates[-1] == [updates]


FAST = {"training.reporting_interval": 10, "env.num_envs": 1, "training.max_steps": 100, **NEVER_LEARN}
EPSILON = [
    ({}, {10: 0.05, 20: 0.05}),  # the end is reached at a tenth of the run
    ({"eps_start": 0.5, "eps_end": 0.1}, {10: 0.1, 50: 0.1}),
    ({"eps_decay": 0.99}, {10: 0.99**10, 50: 0.99**50, 100: 0.99**100}),
    ({"eps_start": 0.6, "eps_decay": 0.99}, {10: 0.6 * 0.99**10, 100: 0.6 * 0.99**100}),
    ({"eps_end": 0.5, "eps_decay": 0.98}, {10: 0.98**10, 30: 0.98**30, 40: 0.5, 100: 0.5}),
    ({"eps_schedule": "linear", "eps_decay": 50}, {10: 0.81, 20: 0.62, 50: 0.05, 90: 0.05}),
    ({"eps_schedule": "linear", "eps_start": 0.9, "eps_end": 0.3, "eps_decay": 80}, {20: 0.75, 80: 0.3}),
    ({"eps_schedule": "constant", "eps_start": 0.3}, {10: 0.3, 100: 0.3}),
]


@effect(
    "TrainingSpec.eps_start", "TrainingSpec.eps_end", "TrainingSpec.eps_decay", "TrainingSpec.eps_schedule"
)
@pytest.mark.parametrize(("exploration", "expected"), EPSILON)
def test_epsilon_is_a_function_of_the_members_env_steps(tmp_path, exploration, expected):
    settings = {f"training.{name}": value for name, value in exploration.items()}
    rows = metrics(job(tmp_path, FAST | settings), "train")
    told = {row["env_step"]: row["epsilon"] for row in rows}
    assert {step: told[step] for step in expected} == pytest.approx(expected, rel=1e-12)


@effect("TrainingSpec.eps_start")
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_random_actions(epsilon):
    settings = {
        "training.eps_schedule": "constant",
        "training.eps_start": epsilon,
        "training.max_steps": 4000,
        "training.evo_steps": 4000,
        "training.replay_buffer.max_size": 4000,
        "algo.learn_step": 4000,
        "env.num_envs": 10,
    }
    loop = loop_of(settings)
    loop.run()
    batch = contents(loop.buffer)
    twin = loop_of(settings).population.agents[0]  # the weights that acted: the one update came last
    other = (batch.action[0] != twin.get_action(batch.obs[0])).mean()
    assert other == pytest.approx(epsilon / 2, abs=0.02)  # half of two random actions are the greedy one
    assert (other == 0) == (epsilon == 0)


@effect("TrainingSpec.checkpoint_steps")
@pytest.mark.parametrize(
    ("every", "num_envs", "expected"),
    [(None, 2, [32, 64]), (20, 2, [20, 40, 60, 64]), (20, 3, [21, 42, 60, 66]), (1000, 2, [64])],
)
def test_checkpoints_come_at_the_step_boundary_that_reaches_them(tmp_path, every, num_envs, expected):
    folder = job(tmp_path, {"training.checkpoint_steps": every, "env.num_envs": num_envs})
    assert steps(folder / "checkpoints") == expected


@effect("TrainingSpec.checkpoint_path")
def test_checkpoints_go_inside_the_job_or_under_an_absolute_path(tmp_path):
    sweep = tmp_path / "sweep"
    job(sweep / "0", {"training.checkpoint_path": "my/place"})
    assert steps(sweep / "0" / "my" / "place") == [32, 64]
    for number in (1, 2):
        job(sweep / str(number), {"training.checkpoint_path": str(tmp_path / "disk")})
        assert steps(tmp_path / "disk" / "sweep" / str(number)) == [32, 64]
        assert not (sweep / str(number) / "checkpoints").exists()


@effect("TrainingSpec.overwrite_checkpoints")
def test_overwriting_keeps_two_directories_and_otherwise_every_policy_stays(tmp_path):
    settings = {"training.checkpoint_steps": 16}
    kept = job(tmp_path / "kept", settings) / "checkpoints"
    over = job(tmp_path / "over", settings | {"training.overwrite_checkpoints": True}) / "checkpoints"
    assert steps(kept) == [16, 32, 48, 64] and steps(over) == [48, 64]
    for step in (16, 32):
        state, manifest = read_checkpoint(kept / f"step-{step}")
        assert not manifest["complete"] and list(state) == ["population"]
    agent = loop_of(settings).population.agents[0]
    agent.load_checkpoint(kept / "step-16")
    assert agent.steps == 16
    for root in (kept, over):
        for step in (48, 64):
            state, manifest = read_checkpoint(root / f"step-{step}")
            assert manifest["complete"] and {"buffer", "envs", "loop"} <= state.keys()


@effect("TrainingSpec.reporting_interval")
@pytest.mark.parametrize(
    ("every", "num_envs", "expected"),
    [
        (10, 2, [10, 20, 30, 32, 40, 50, 60, 64]),
        (10, 3, [12, 21, 30, 33, 42, 51, 60, 66]),
        (1000, 2, [32, 64]),
        (16, 2, [16, 32, 48, 64]),  # a generation that ends on a report adds no second row
    ],
)
def test_a_row_every_reporting_interval_and_at_each_generation(tmp_path, every, num_envs, expected):
    folder = job(tmp_path, {"training.reporting_interval": every, "env.num_envs": num_envs})
    assert [row["env_step"] for row in metrics(folder, "train")] == expected


@effect("TrainingSpec.experience_sharing")
def test_sharing_is_one_ring_for_all_that_fills_faster():
    settings = {"training.pop_size": 4, "training.replay_buffer.max_size": 50, **EVERY_STEP}
    own, shared = (ran(settings | {"training.experience_sharing": flag}) for flag in (False, True))
    assert len(own.buffer) == 4 * 50 and len(shared.buffer) == 50
    assert own.buffer.sizes.tolist() == shared.buffer.sizes.tolist() == [50] * 4
    assert own.session.first_update() == 8 and shared.session.first_update() == 2
    assert shared.env_step.tolist() == [64] * 4  # clocks stay those of each member
    rows = [contents(shared.buffer, member) for member in range(4)]
    assert len({batch.obs.tobytes() for batch in rows}) == 1
    assert len({contents(own.buffer, member).action.tobytes() for member in range(4)}) == 4
