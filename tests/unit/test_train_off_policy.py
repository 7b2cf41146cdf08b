"""Training as a library: no config, no job directory; and no member of a population knows of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from probe_envs import Legal, Noisy, Steps
from small import RINGS, contents

from agilerl_exp.algorithms.dqn import DQN
from agilerl_exp.buffers import join
from agilerl_exp.envs import MemberEnvs, make_member_envs
from agilerl_exp.envs.blocks import Blocks
from agilerl_exp.errors import ConfigError
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.training import ReplayBufferSpec, TrainingSpec
from agilerl_exp.population import native
from agilerl_exp.population.population import Population
from agilerl_exp.run.random import Streams
from agilerl_exp.training.evaluate import Evaluator
from agilerl_exp.training.off_policy import OffPolicy

CARTPOLE = EnvSpec(id="CartPole-v1", num_envs=4)
TRAINING = {"hpo": False, "max_steps": 240, "evo_steps": 120, "eval_loop": 3, "eval_steps": 40}


def dqn(**fields: Any) -> DQNSpec:
    small = {
        "net_config": {"hidden_size": [16], "init": "orthogonal"},
        "batch_size": 16,
        "learn_step": 3,
        "lr": 1e-2,
    }
    return DQNSpec(**small | fields)


def cartpole(num_envs: int, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: TimeLimit(CartPoleEnv(), 60)] * num_envs, autoreset_mode=mode)


def seeded(member: int) -> MemberEnvs:
    """Environments that play the same episodes each time they are made."""
    return MemberEnvs(cartpole(2), seeds=[100 * member + 1, 100 * member + 2], member=member)


def build(spec: DQNSpec, env: Any, pop: int) -> list[Any]:
    return [
        spec.build_algorithm(env.single_observation_space, env.single_action_space, index=i)
        for i in range(pop)
    ]


def train(
    env: Any, pop: Sequence[Any], ring: str = "standard", **settings: Any
) -> tuple[list[Any], list[float], Any]:
    """The call that a library user makes."""
    spec, more = pop[0].spec, {name: settings.pop(name) for name in ("eval_env", "seed") if name in settings}
    buffers = ReplayBufferSpec(max_size=1000, **RINGS[ring])
    memory = buffers.init_buffer(spec)
    kwargs = spec.get_training_kwargs(
        training=TrainingSpec(pop_size=len(pop), **TRAINING | settings),
        env_spec=CARTPOLE,
        memory=memory,
        n_step_memory=buffers.init_n_step_buffer(spec),
    )
    agents, fitness = spec.get_training_fn()(env, pop, **kwargs, **more)
    return agents, fitness, memory


def snapshot(agent: Any) -> dict[str, np.ndarray]:
    """Weights, targets, moments and counters of an agent."""
    state = agent.state_dict()
    return {name: np.array(value) for name, value in {**state["bank"], **state["counters"]}.items()}


def equal(a: Any, b: Any) -> bool:
    one, other = snapshot(a), snapshot(b)
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


# A user's call.


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.parametrize("divided", [False, True])
def test_the_same_objects_come_back_trained_with_the_score_of_their_last_evaluation(ring, divided):
    env = cartpole(4 if divided else 2)
    pop = build(dqn(), env, 2)
    before = [snapshot(agent) for agent in pop]
    agents, fitness, memory = train(env if divided else lambda _: cartpole(2), pop, ring, eval_env=seeded)
    assert agents == pop and [agent is given for agent, given in zip(agents, pop, strict=True)] == [
        True,
        True,
    ]
    for i, agent in enumerate(agents):
        # 80 fall due; those before a batch of 16 is there (n-step rows come two vector steps later) are not caught up
        assert agent.steps == 240 and agent.update_step == (74 if "n_step" in ring else 76)
        assert not np.array_equal(snapshot(agent)["weights"], before[i]["weights"])
        assert len(agent.fitness) == 2 and agent.fitness[-1] == fitness[i]
        assert agent.test(seeded(i), loop=3, max_steps=40) == fitness[i]  # nothing happened to it since
    assert memory.sizes.tolist() == [240, 240]
    assert not equal(*agents)


def test_a_single_agent_and_the_defaults_of_everything_else():
    env = cartpole(2)
    pop = build(dqn(), env, 1)
    memory = ReplayBufferSpec(max_size=100).init_buffer(pop[0].spec)
    agents, (fitness,) = pop[0].spec.get_training_fn()(
        lambda _: cartpole(2), pop, memory, training=TrainingSpec(max_steps=50, eval_loop=2)
    )
    assert agents[0] is pop[0] and pop[0].steps == 50 and fitness == pop[0].fitness[-1]


def test_the_same_seed_trains_the_same_agents_and_another_one_does_not():
    runs = [train(seeded, build(dqn(), cartpole(2), 2), eval_env=seeded, seed=seed)[0] for seed in (0, 0, 1)]
    assert all(equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not any(equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))


def test_training_goes_on_from_where_an_agent_stands():
    pop = build(dqn(), cartpole(2), 1)
    train(seeded, pop, eval_env=seeded)
    first = snapshot(pop[0])
    assert train(seeded, pop, eval_env=seeded)[1] == pop[0].fitness[-1:]
    assert pop[0].update_step == 2 * int(first["update_step"]) and len(pop[0].fitness) == 4
    assert not np.array_equal(snapshot(pop[0])["weights"], first["weights"])


def test_masks_reach_the_ring_and_hold_everywhere():
    env = SyncVectorEnv([lambda: Legal(length=5)] * 2)
    _, fitness, memory = train(  # an illegal action raises
        lambda _: SyncVectorEnv([lambda: Legal(length=5)] * 2), build(dqn(), env, 2), eps_schedule="constant"
    )
    assert fitness == [5.0, 5.0]
    rows = contents(memory, 1)
    after = rows.next_obs[0, :, 0].astype(int)
    assert np.array_equal(rows.next_mask[0], np.eye(4, dtype=np.uint8)[after % 4])
    assert np.array_equal(rows.action[0], rows.obs[0, :, 0].astype(int) % 4)


def test_copies_that_cannot_be_divided_are_refused():
    env = cartpole(3)
    with pytest.raises(ConfigError, match="3 copies cannot be divided among 2 members"):
        train(env, build(dqn(), env, 2), eval_env=seeded)


def test_members_with_unlike_environments_are_refused():
    def make(member):
        return cartpole(2 + member)

    with pytest.raises(ConfigError, match=r"env\(1\): num_envs is 3, that of env\(0\) 2"):
        train(make, build(dqn(), cartpole(2), 2))


def test_an_episode_that_may_never_end_is_refused_before_training():
    def make(member):
        return SyncVectorEnv([lambda: Steps()])

    pop = build(dqn(), make(0), 1)
    with pytest.raises(ConfigError, match="eval_steps"):
        train(make, pop, eval_steps=None)
    assert pop[0].steps == 0


def test_a_vector_env_that_cannot_be_made_again_needs_an_eval_env():
    env = cartpole(2)
    env.spec = None
    with pytest.raises(ConfigError, match="give eval_env"):
        train(env, build(dqn(), env, 1))


class Renamed(DQN):
    """Another algorithm."""


MISTAKES = {
    "nobody": (lambda pop: [], "pop"),
    "the same agent twice": (lambda pop: [pop[0], pop[0]], "twice"),
    "another pop_size": (lambda pop: pop[:1], "pop_size"),
    "two algorithms": (
        lambda pop: [pop[0], Renamed(dqn(), pop[0].observation_space, pop[0].action_space, 1)],
        "Renamed",
    ),
    "other observations": (
        lambda pop: [dqn().build_algorithm(spaces.Discrete(3), pop[0].action_space, i) for i in range(2)],
        "observation",
    ),
    "other actions": (
        lambda pop: [
            dqn().build_algorithm(pop[0].observation_space, spaces.Discrete(9), i) for i in range(2)
        ],
        "action",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_population_that_cannot_work_is_refused_in_one_line(mistake):
    change, words = MISTAKES[mistake]
    pop = change(build(dqn(), cartpole(2), 2))
    spec, memory = dqn(), ReplayBufferSpec(max_size=100).init_buffer(dqn())
    training = TrainingSpec(pop_size=2, max_steps=20, eval_steps=5)
    with pytest.raises(ConfigError, match=words) as caught:
        spec.get_training_fn()(lambda _: cartpole(2), pop, memory, training=training, eval_env=seeded)
    assert "\n" not in str(caught.value)


def test_sharing_needs_a_shared_memory():
    with pytest.raises(ConfigError, match="experience_sharing"):
        train(seeded, build(dqn(), cartpole(2), 2), experience_sharing=True, eval_env=seeded)


def test_vector_envs_that_the_call_makes_are_seeded_and_closed():
    made: list[SyncVectorEnv] = []

    def make(_):
        made.append(cartpole(2))
        return made[-1]

    runs = [train(make, build(dqn(), cartpole(2), 1)) for _ in range(2)]
    assert equal(runs[0][0][0], runs[1][0][0]) and runs[0][1] == runs[1][1]
    assert all(env.closed for env in made)


# What a divided environment stores.


def walks(memory: Any, member: int, n_step: int) -> set[int]:
    """By how many steps of the episode the observations of each row lie apart, beyond its own rewards."""
    rows = contents(memory, member)
    apart = (rows.next_obs - rows.obs)[0, :, 0].round().astype(int)
    length = np.searchsorted(np.cumsum(0.99 ** np.arange(n_step)), rows.reward[0] - 1e-3) + 1
    return set((apart - length).tolist())


@pytest.mark.parametrize("ring", ["standard", "n_step"])
@pytest.mark.parametrize(
    "mode",
    [
        AutoresetMode.SAME_STEP,
        AutoresetMode.NEXT_STEP,
    ],
)
def test_members_that_wait_for_others_lose_no_step_of_a_divided_environment(ring, mode):
    lengths = [[3], [3], [7], [50]]  # the first member has more reset steps, so the second one waits for it
    env = SyncVectorEnv([lambda ends=ends: Steps(ends=ends) for ends in lengths], autoreset_mode=mode)
    pop = build(dqn(), env, 2)
    one = lambda _: SyncVectorEnv([lambda: Steps(cuts=[3])])  # noqa: E731
    memory = train(env, pop, ring, evo_steps=50, max_steps=200, eval_env=one)[2]
    for member in range(2):
        assert walks(memory, member, 3 if ring == "n_step" else 1) == {0}


def test_with_a_vector_env_each_waiting_members_lose_no_step():
    lengths = [[[3], [3]], [[7], [50]]]
    make = lambda i: SyncVectorEnv([lambda ends=ends: Steps(ends=ends) for ends in lengths[i]])  # noqa: E731
    one = lambda _: SyncVectorEnv([lambda: Steps(cuts=[3])])  # noqa: E731
    pop = build(dqn(), make(0), 2)
    agents, _, memory = train(make, pop, "n_step", evo_steps=50, max_steps=200, eval_env=one)
    assert [walks(memory, member, 3) for member in range(2)] == [{0}, {0}]
    assert [agent.steps for agent in agents] == [200, 201]


# No member knows of the others.


def run(
    specs: Mapping[int, DQNSpec], ring: str = "standard", engine: str | None = None, **training: Any
) -> dict[int, Any]:
    """Train members in the slots that are the keys; each sees the same streams whoever else is there."""
    slots = list(specs)
    streams = Streams(7, slots)
    envs = Blocks(
        [
            make_member_envs(CARTPOLE, streams.env_seeds(slot, CARTPOLE.num_envs), member=slot)
            for slot in slots
        ]
    )
    agents = [
        spec.build_algorithm(envs.observation_space, envs.action_space, slot) for slot, spec in specs.items()
    ]
    if engine is not None:
        for agent in agents:
            agent.cohort.engine = engine
    spec = next(iter(specs.values()))
    buffers = ReplayBufferSpec(max_size=150, **RINGS[ring])  # the ring comes round
    memory = join(buffers.init_buffer(spec), buffers.init_n_step_buffer(spec))

    def evaluation(member: int, generation: int, episodes: int) -> MemberEnvs:
        return make_member_envs(CARTPOLE, streams.env_seeds(slots[member], episodes, "eval", generation))

    loop = OffPolicy(
        Population(agents),
        envs,
        memory,
        TrainingSpec(pop_size=len(slots), **TRAINING | training),
        streams,
        Evaluator(evaluation, 3, 40),
    )
    loop.run()
    envs.close()
    for position, agent in enumerate(agents):
        agent.metrics = loop.meter.take(position)
        agent.cohorts = len(loop.population.cohorts)
    return dict(zip(slots, agents, strict=True))


COLUMNS = {
    0: {},
    2: {"lr": 3e-3, "gamma": 0.9, "tau": 0.05},
    3: {"batch_size": 5},
    5: {"learn_step": 8, "batch_size": 40, "lr": 2e-2},
}
WIDE = {"net_config": {"hidden_size": [8, 8]}}
GROUPS = {
    "one cohort": (1, COLUMNS),
    "two cohorts": (2, {0: {}, 1: WIDE, 4: {"lr": 3e-3}, 6: WIDE | {"batch_size": 7}}),
    "neighbours": (3, {0: {}, 1: WIDE, 2: {"double": True}}),
}


BASE = {"normalize_obs": True, "max_grad_norm": 1.0, "lr_schedule": "linear"}
ENGINES = ["native", "stacked", "autograd"]


def skip_without_compiler(engine: str) -> None:
    if engine == "native" and native.compiled_step() is None:
        pytest.skip("no C compiler")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("group", GROUPS)
def test_a_member_ends_as_if_it_had_been_alone(group, engine):
    skip_without_compiler(engine)
    cohorts, members = GROUPS[group]
    specs = {slot: dqn(**BASE, **own) for slot, own in members.items()}
    together = run(specs, "per_n_step", engine)
    assert {agent.cohorts for agent in together.values()} == {cohorts}
    for slot, spec in specs.items():
        alone = run({slot: spec}, "per_n_step", engine)[slot]
        one, other = snapshot(alone), snapshot(together[slot])
        assert other["update_step"] == one["update_step"] > 20
        for name in one:
            assert np.allclose(one[name], other[name], rtol=1e-4, atol=1e-5), (slot, name)
        assert alone.fitness == together[slot].fitness
        for name in ("loss", "score", "episodes"):
            assert alone.metrics[name] == pytest.approx(together[slot].metrics[name], rel=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_reported_value_is_the_mean_over_the_members_own_batch(engine):
    skip_without_compiler(engine)
    specs = {0: dqn(batch_size=5), 1: dqn(batch_size=40)}
    alone = run({0: specs[0]}, engine=engine)[0]
    together = run(specs, engine=engine)[0]
    assert alone.metrics["q_value"] == pytest.approx(together.metrics["q_value"], rel=1e-4)


@pytest.mark.parametrize("ring", RINGS)
def test_the_bytes_of_a_member_do_not_depend_on_the_number_of_members(ring):
    whole = run({slot: dqn() for slot in range(4)}, ring)
    for slots in ([0], [2], [1, 3]):
        part = run({slot: dqn() for slot in slots}, ring)
        assert all(equal(part[slot], whole[slot]) for slot in slots), slots
        assert all(part[slot].fitness == whole[slot].fitness for slot in slots)


def test_members_that_reach_a_generation_at_different_times_wait_and_lose_nothing():
    noisy = lambda i: SyncVectorEnv(  # noqa: E731
        [lambda: Noisy(cuts=[3 + 4 * i])] * 2, autoreset_mode=AutoresetMode.NEXT_STEP
    )
    pop = build(dqn(), noisy(0), 3)
    agents, _, memory = train(noisy, pop, evo_steps=40, max_steps=121)
    assert memory.sizes.tolist() == [agent.steps for agent in agents]
    assert all(121 <= agent.steps <= 122 for agent in agents)
