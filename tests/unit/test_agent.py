"""A single agent in the hands of a user: built from a spec, acting, learning, tested, saved, loaded, cloned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from probe_envs import Legal, Offset, Steps

from agilerl_exp.algorithms.dqn import DQN
from agilerl_exp.buffers import ReplayBuffer, Transition
from agilerl_exp.envs import MemberEnvs
from agilerl_exp.errors import CheckpointError, ConfigError, SpaceError
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.models.base import tunables
from agilerl_exp.population import native
from agilerl_exp.population.cohort import Loss
from agilerl_exp.population.population import Population
from agilerl_exp.run.checkpoint import write_checkpoint

OBS = spaces.Box(-1, 1, (3,), np.float32)
ACT = spaces.Discrete(4)
SMALL = {"hidden_size": [8, 8], "init": "orthogonal"}
SPACES = {
    "box": OBS,
    "matrix": spaces.Box(-1, 1, (2, 3), np.float64),
    "discrete": spaces.Discrete(5, start=-2),
    "multidiscrete": spaces.MultiDiscrete([3, 4]),
    "multibinary": spaces.MultiBinary(6),
    "dict": spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.Dict(c=OBS)),
    "tuple": spaces.Tuple((spaces.Discrete(7), spaces.MultiBinary(2))),
}


def make(observation_space=OBS, action_space=ACT, index=0, **fields) -> DQN:
    spec = DQNSpec(**{"net_config": SMALL, "lr": 1e-2, "batch_size": 16} | fields)
    return spec.build_algorithm(observation_space, action_space, index)


def filled(pop=1, rows=32, actions=4, width=3, seed=0, **kind) -> ReplayBuffer:
    rng = np.random.default_rng(seed)
    buffer = ReplayBuffer(64, **kind)
    for _ in range(rows // 4):
        buffer.add(
            Transition(
                rng.standard_normal((pop, 4, width)).astype(np.float32),
                rng.integers(0, actions, (pop, 4)),
                rng.standard_normal((pop, 4)).astype(np.float32),
                rng.random((pop, 4)) < 0.2,
                np.zeros((pop, 4), bool),
                rng.standard_normal((pop, 4, width)).astype(np.float32),
            )
        )
    return buffer


def learn(agent, times=3, seed=5, buffer=None):
    buffer = filled() if buffer is None else buffer
    for k in range(times):
        out = agent.learn(buffer.sample(16, np.random.default_rng([seed, k])))
    return out


def use(agent, engine):
    if engine == "native" and native.compiled_step() is None:
        pytest.skip("no C compiler")
    agent.cohort.engine = engine


def state_bytes(agent) -> dict[str, bytes]:
    """Every array and number of an agent, by name."""
    flat: dict[str, bytes] = {}

    def walk(tree, place):
        if isinstance(tree, dict):
            for key, leaf in tree.items():
                walk(leaf, f"{place}.{key}")
        else:
            flat[place] = np.asarray(tree).tobytes() if not isinstance(tree, str) else tree.encode()

    walk(agent.state_dict(), "")
    return flat


def batch_of(space, n):
    """n observations of a space as one batch, and as a list."""
    space.seed(3)
    items = [space.sample() for _ in range(n)]

    def gather(parts):
        if isinstance(parts[0], dict):
            return {key: gather([part[key] for part in parts]) for key in parts[0]}
        if isinstance(parts[0], tuple):
            return tuple(gather([part[i] for part in parts]) for i in range(len(parts[0])))
        return np.stack(parts)

    return gather(items), items


# Building.


def test_a_space_or_index_that_is_missing_is_named():
    for missing in ("observation_space", "action_space", "index"):
        given = {"observation_space": OBS, "action_space": ACT, "index": 0} | {missing: None}
        with pytest.raises(ValueError, match=missing):
            DQNSpec().build_algorithm(**given)


@pytest.mark.parametrize("action_space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2])])
def test_actions_that_are_not_discrete_are_refused_in_one_line(action_space):
    with pytest.raises(SpaceError, match="not Discrete; DQN needs a finite set") as caught:
        make(action_space=action_space)
    assert "\n" not in str(caught.value)


def test_a_network_that_cannot_read_the_observations_is_refused_in_one_line():
    with pytest.raises(SpaceError, match="is an image; take network=cnn") as caught:
        make(spaces.Box(0, 255, (84, 84, 3), np.uint8), net_config={"arch": "simba"})
    assert "\n" not in str(caught.value)


CHANGED = {
    "batch_size": 7,
    "hp_config": {"lr": {"min": 1e-4, "max": 1e-3}},
    "learn_step": 3,
    "gamma": 0.5,
    "net_config": {"hidden_size": [5], "activation": "Tanh", "layer_norm": True, "init": "he"},
    "lr": 0.03,
    "lr_schedule": "linear",
    "lr_final_fraction": 0.5,
    "tau": 0.3,
    "target_update_interval": 9,
    "double": True,
    "loss": "huber",
    "max_grad_norm": 0.7,
    "normalize_obs": True,
}


@pytest.mark.parametrize("name", DQNSpec.model_fields)
def test_every_field_reaches_the_agent_set_or_not(name):
    default = DQNSpec().build_algorithm(OBS, ACT, 0)
    changed = DQNSpec(**{name: CHANGED[name]}).build_algorithm(OBS, ACT, 0)
    for agent in (default, changed):
        assert agent.cohort.spec == agent.spec
        columns = {key: float(getattr(agent.spec, key)) for key in tunables(DQNSpec)}
        assert agent.hyperparameters == columns
    if name != "net_config":  # which the observations complete
        assert getattr(default.cohort.spec, name) == getattr(DQNSpec(), name)
    assert getattr(changed.cohort.spec, name) != getattr(default.cohort.spec, name)


def test_the_network_is_that_of_the_spec():
    (name, module), *others = make(net_config=CHANGED["net_config"]).networks_as_modules().items()
    assert name == "q" and not others
    kinds = [type(layer).__name__ for layer in module]
    assert kinds == ["Linear", "LayerNorm", "Tanh", "Linear"]
    assert [p.shape for p in module.parameters()] == [(5, 3), (5,), (5,), (5,), (4, 5), (4,)]


def test_initial_weights_follow_index_and_seed_alone():
    assert state_bytes(make(index=1)) == state_bytes(make(index=1))
    weights = {state_bytes(make(index=i))[".bank.weights"] for i in range(3)}
    weights.add(state_bytes(DQN(make().spec, OBS, ACT, 0, seed=1))[".bank.weights"])
    assert len(weights) == 4
    agent = make()
    assert torch.equal(agent.cohort.bank.weights, agent.cohort.bank.target)


# Acting.


@pytest.mark.parametrize("kind", SPACES)
def test_single_and_batched_observations_give_the_same_actions(kind):
    agent = make(SPACES[kind])
    for view in agent.cohort.bank.views("weights"):
        view += torch.from_numpy(np.random.default_rng(0).standard_normal(view.shape)).float()
    batch, items = batch_of(SPACES[kind], 32)
    actions = agent.get_action(batch)
    assert actions.shape == (32,) and actions.dtype == np.int64
    singles = [agent.get_action(item) for item in items]
    assert all(np.shape(a) == () and ACT.contains(a) for a in singles)
    assert actions.tolist() == [int(a) for a in singles]
    assert len(set(actions.tolist())) > 1  # they do depend on the observation


def test_actions_are_those_of_the_greatest_value():
    agent = make()
    obs = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    q = agent.networks_as_modules()["q"](torch.from_numpy(obs)).detach().numpy()
    assert agent.get_action(obs).tolist() == q.argmax(1).tolist()
    mask = (np.random.default_rng(1).random((64, 4)) < 0.5).astype(np.int8)
    mask[0] = 0  # nothing legal: the environment has its own way out, nothing is forbidden
    legal = np.where(mask | ~mask.any(1, keepdims=True), q, -np.inf)
    assert agent.get_action(obs, mask=mask).tolist() == legal.argmax(1).tolist()
    assert agent.get_action(obs[3], mask=mask[3]) == legal[3].argmax()
    assert agent.get_action(obs[0], mask=mask[0]) == q[0].argmax()


def test_actions_come_in_the_numbers_of_the_space():
    agent = make(action_space=spaces.Discrete(3, start=5))
    obs = np.random.default_rng(0).standard_normal((300, 3)).astype(np.float32)
    assert set(agent.get_action(obs, epsilon=1.0, rng=np.random.default_rng(0)).tolist()) == {5, 6, 7}
    assert agent.spec.build_algorithm(OBS, spaces.Discrete(3, start=-4), 0).get_action(obs[0]) in (-4, -3, -2)


def test_epsilon_is_the_probability_of_a_uniform_legal_action():
    agent, n = make(), 40_000
    obs = np.broadcast_to(np.array([0.1, -0.2, 0.3], np.float32), (n, 3))
    greedy = int(agent.get_action(obs[0]))
    actions = agent.get_action(obs, epsilon=0.4, rng=np.random.default_rng(0))
    share = np.bincount(actions, minlength=4) / n
    expected = np.full(4, 0.1)
    expected[greedy] += 0.6
    assert np.abs(share - expected).max() < 0.01  # five standard deviations
    mask = np.tile(np.array([1, 0, 1, 1]), (n, 1))
    share = np.bincount(agent.get_action(obs, 1.0, mask, np.random.default_rng(1)), minlength=4) / n
    assert share[1] == 0 and np.abs(share[[0, 2, 3]] - 1 / 3).max() < 0.012
    share = np.bincount(agent.get_action(obs, 1.0, 0 * mask, np.random.default_rng(2)), minlength=4) / n
    assert np.abs(share - 0.25).max() < 0.011


def test_exploring_without_a_generator_is_refused():
    with pytest.raises(ValueError, match="rng"):
        make().get_action(np.zeros(3, np.float32), epsilon=0.1)


def test_an_agent_inside_a_population_acts_with_its_own_row():
    agents = [make(index=i) for i in range(3)]
    obs = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    alone = [agent.get_action(obs).tolist() for agent in agents]
    Population(agents)
    assert [agent.get_action(obs).tolist() for agent in agents] == alone
    assert len({tuple(actions) for actions in alone}) == 3


# Learning.


@pytest.mark.parametrize("engine", ["native", "stacked", "autograd"])
def test_one_step_is_adam_on_the_mean_squared_td_error(engine):
    agent = make(gamma=0.9, tau=0.25)
    use(agent, engine)
    before = agent.cohort.bank.weights.clone()
    module = agent.networks_as_modules()["q"]
    reference = torch.nn.Sequential(
        *(type(m)(m.in_features, m.out_features) if hasattr(m, "weight") else m for m in module)
    )
    reference.load_state_dict({k: v.clone() for k, v in module.state_dict().items()})
    batch = filled().sample(16, np.random.default_rng(0), gamma=0.9)
    q = reference(torch.from_numpy(batch.obs[0]))
    with torch.no_grad():
        best = reference(torch.from_numpy(batch.next_obs[0])).max(1).values
    target = torch.from_numpy(batch.reward[0]) + 0.9 * (1 - torch.from_numpy(batch.terminated[0])) * best
    error = q.gather(1, torch.from_numpy(batch.action[0])[:, None])[:, 0] - target
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-2)
    (error**2).mean().backward()
    optimizer.step()
    out = agent.learn(batch)
    assert out["loss"] == pytest.approx((error**2).mean().item(), rel=1e-5)
    assert out["q_value"] == pytest.approx((error + target).mean().item(), rel=1e-4, abs=1e-6)
    for ours, theirs in zip(module.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert agent.update_step == 1
    mixed = 0.75 * before + 0.25 * agent.cohort.bank.weights
    assert torch.allclose(agent.cohort.bank.target, mixed, atol=1e-7)


@pytest.mark.parametrize("engine", ["native", "stacked", "autograd"])
def test_learning_on_a_fixed_batch_reduces_its_loss(engine):
    agent, buffer = make(tau=0), filled()
    use(agent, engine)
    losses = [agent.learn(buffer.sample(16, np.random.default_rng(0)))["loss"] for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]


def test_a_member_of_a_population_learns_alone():
    agents = [make(index=i) for i in range(3)]
    twin = agents[1].clone()
    Population(agents)
    before = [state_bytes(agent) for agent in agents]
    buffer = filled()
    learn(agents[1], buffer=buffer)
    learn(twin, buffer=buffer)
    assert [state_bytes(agent) == old for agent, old in zip(agents, before, strict=True)] == [
        True,
        False,
        True,
    ]
    assert np.allclose(
        agents[1].state_dict()["bank"]["weights"], twin.state_dict()["bank"]["weights"], atol=1e-6
    )


def test_priorities_can_be_fed_back():
    agent, buffer = make(), filled(alpha=1.0)
    batch = buffer.sample(16, np.random.default_rng(0))
    agent.learn(batch)
    assert agent.td_error.shape == (1, 16)
    buffer.update_priorities(batch.index, agent.td_error)
    largest = int(batch.index[0, np.abs(agent.td_error[0]).argmax()])
    assert buffer._priorities.trees.values[0, largest] == pytest.approx(
        np.abs(agent.td_error).max(), rel=1e-4
    )


def test_steps_drive_target_copies_in_a_loop_of_ones_own():
    agent = make(target_update_interval=10)
    bank = agent.cohort.bank
    for steps, copied in ((4, False), (9, False), (10, True), (19, False), (35, True)):
        agent.steps = steps
        learn(agent, times=1)
        assert torch.equal(bank.weights, bank.target) == copied
    assert agent.steps == 35 and agent.update_step == 5


class OwnLoss(DQN):
    """Overrides the loss alone: Q of every action taken is pulled to 7."""

    @staticmethod
    def loss(nets, params, target, batch, spec):
        q = nets["q"].apply(params["q"], batch.obs).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        return Loss((batch.scale * (q - 7) ** 2).sum(-1), q - 7)


def test_a_loss_that_is_overridden_is_the_one_that_trains():
    agent = OwnLoss(make(lr=0.05).spec, OBS, ACT, 0)
    assert agent.cohort.engine == "autograd"
    buffer = filled()
    learn(agent, times=300, buffer=buffer)
    batch = buffer.sample(16, np.random.default_rng(0))
    q = agent.cohort.outputs("q", batch.obs)[0][np.arange(16), batch.action[0]]
    assert np.abs(q - 7).max() < 0.5


def test_statistics_of_ones_own_loop():
    agent, obs = make(normalize_obs=True), np.array([[1, 2, 3], [3, 2, 7]], np.float32)
    agent.observe(obs)
    assert np.allclose(agent.cohort.encode(obs[None], None), [[[-1, 0, -1], [1, 0, 1]]], atol=1e-4)
    make().observe(obs)  # nothing to do


# Testing.


def vector(make_env, n, mode=AutoresetMode.NEXT_STEP):
    return SyncVectorEnv([make_env] * n, autoreset_mode=mode)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_test_is_the_mean_of_exactly_loop_episodes(mode):
    agent = make(Steps().observation_space, spaces.Discrete(2))
    lengths = [2, 7, 3, 5]  # each copy plays them in this order
    env = vector(lambda: Steps(ends=lengths), 2, mode)
    assert agent.test(env, loop=5) == np.mean([2, 7, 3, 2, 7])
    assert agent.test(vector(lambda: Steps(cuts=[9]), 3, mode), loop=2, max_steps=4) == 4.0
    assert agent.fitness == [np.mean([2, 7, 3, 2, 7]), 4.0]


def test_test_takes_the_adapter_offsets_and_masks():
    agent = make(Steps().observation_space, spaces.Discrete(3, start=5))
    assert 5 * 3 <= agent.test(MemberEnvs(vector(lambda: Offset(cuts=[3]), 2)), loop=2) <= 7 * 3
    masked = make(Steps().observation_space, spaces.Discrete(4))
    assert masked.test(vector(lambda: Legal(length=6), 2), loop=3) == 6.0  # an illegal action raises
    assert masked.test(vector(lambda: Legal(length=6, none_at=2), 2), loop=3) == 6.0


def test_test_changes_nothing_but_fitness():
    agent = make(Steps().observation_space, spaces.Discrete(2))
    before = state_bytes(agent)
    agent.test(vector(lambda: Steps(cuts=[3]), 2), loop=2)
    after = state_bytes(agent)
    assert {name for name in after if after[name] != before[name]} == {".fitness"}


def test_an_env_that_is_no_vector_env_is_named():
    with pytest.raises(ConfigError, match="VectorEnv"):
        make(Steps().observation_space, spaces.Discrete(2)).test(Steps(cuts=[3]))


# Saving and loading.


def trained(**fields):
    agent = make(index=2, **fields)
    agent.cohort.observe(np.random.default_rng(0).normal(3, 2, (1, 50, 3)), None, np.ones((1, 50), bool))
    agent.steps = 77
    learn(agent)
    agent.fitness += [1.5, -2.0]
    agent.cohort.hyper["lr"][0] = 0.002
    return agent


@pytest.mark.parametrize("normalize", [False, True])
def test_a_saved_agent_comes_back_to_the_byte(tmp_path, normalize):
    agent = trained(normalize_obs=normalize)
    agent.save_checkpoint(tmp_path / "agent")
    other = make(index=0, normalize_obs=normalize)
    other.load_checkpoint(tmp_path / "agent")
    assert state_bytes(other) == state_bytes(agent)
    assert (other.steps, other.update_step, other.fitness) == (77, 3, [1.5, -2.0])
    assert other.hyperparameters["lr"] == 0.002
    obs = np.random.default_rng(1).standard_normal((256, 3)).astype(np.float32)
    assert other.get_action(obs).tolist() == agent.get_action(obs).tolist()
    learn(agent), learn(other)
    assert state_bytes(other) == state_bytes(agent)  # moments and counters came along
    again = agent.spec.build_algorithm(OBS, ACT, 0, resume_from_checkpoint=str(tmp_path / "agent"))
    assert again.hyperparameters["lr"] == 0.002


def test_saving_again_replaces_and_saving_a_member_saves_its_row_only(tmp_path):
    agents = [trained(), make(index=1), make(index=0)]
    agents[0].save_checkpoint(tmp_path / "agent")
    Population(agents)
    agents[1].save_checkpoint(tmp_path / "agent")
    loaded = make()
    loaded.load_checkpoint(tmp_path / "agent")
    assert state_bytes(loaded) == state_bytes(agents[1])
    bank = agents[1].cohort.bank
    size = sum(file.stat().st_size for file in (tmp_path / "agent").glob("*.safetensors"))
    assert size < 4 * bank.weights.shape[1] * 4 + 2000  # four roles of one row, not of three


def test_index_picks_a_member_of_a_step_directory(tmp_path):
    agents = [trained(), make(index=1)]
    members = {str(i): agent.state_dict() for i, agent in enumerate(agents)}
    path = write_checkpoint(tmp_path, 40, {"population": {"members": members}}, {"loop": {}}, {})
    for i, agent in enumerate(agents):
        loaded = agent.spec.build_algorithm(OBS, ACT, i, resume_from_checkpoint=str(path))
        assert state_bytes(loaded) == state_bytes(agent)
    with pytest.raises(CheckpointError, match=r"step-40: holds members 0\.\.1, not 2"):
        make(index=2).load_checkpoint(path)


class Other(DQN):
    """Another algorithm by its name."""


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: make(action_space=spaces.Discrete(5)), "out_width=5"),
        (lambda: make(spaces.Box(-1, 1, (4,), np.float32)), "in_width=4"),
        (lambda: Other(make().spec, OBS, ACT, 0), "Other"),
        (lambda: make(normalize_obs=True), "normalize_obs"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_and_changes_nothing(tmp_path, build, words):
    make().save_checkpoint(tmp_path / "agent")
    agent = build()
    before = state_bytes(agent)
    with pytest.raises(CheckpointError, match=words) as caught:
        agent.load_checkpoint(tmp_path / "agent")
    assert "\n" not in str(caught.value) and str(tmp_path / "agent") in str(caught.value)
    assert state_bytes(agent) == before


@pytest.mark.parametrize("net", [{"hidden_size": [8]}, {"hidden_size": [24, 8, 8], "layer_norm": True}])
def test_an_agent_takes_over_the_architecture_of_a_checkpoint(tmp_path, net):
    first = make(net_config=net)
    first.save_checkpoint(tmp_path / "agent")
    agent = make()
    agent.load_checkpoint(tmp_path / "agent")
    assert agent.spec.net_config == first.spec.net_config and state_bytes(agent) == state_bytes(first)
    obs = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    assert agent.get_action(obs).tolist() == first.get_action(obs).tolist()


def test_a_damaged_architecture_is_refused(tmp_path):
    agent = make()
    state = agent.state_dict() | {"net_config": {"arch": "mlp", "hidden_size": [0]}}
    with pytest.raises(CheckpointError, match="net_config"):
        agent.load_state_dict(state)


def test_a_policy_with_statistics_is_refused_by_an_agent_without(tmp_path):
    trained(normalize_obs=True).save_checkpoint(tmp_path / "agent")
    with pytest.raises(CheckpointError, match="normalize_obs"):
        make().load_checkpoint(tmp_path / "agent")


def test_missing_and_damaged_directories_are_refused_in_one_line(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        make().load_checkpoint(tmp_path / "nowhere")
    make().save_checkpoint(tmp_path / "agent")
    file = tmp_path / "agent/agent.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"agent\.safetensors") as caught:
        make().load_checkpoint(tmp_path / "agent")
    assert "\n" not in str(caught.value)


def test_a_directory_that_holds_no_agent_is_refused(tmp_path):
    path = write_checkpoint(tmp_path, 1, {"something": {"else": 1}}, {}, {})
    with pytest.raises(CheckpointError, match="step-1"):
        make().load_checkpoint(path)


# Cloning.


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_clone_is_equal_and_shares_nothing(inside, normalize):
    agent = trained(normalize_obs=normalize)
    if inside:
        Population([make(normalize_obs=normalize), agent, make(normalize_obs=normalize)])
    twin = agent.clone(index=9)
    before = state_bytes(agent)
    assert state_bytes(twin) == before
    assert (twin.index, agent.index, twin.cohort.pop) == (9, 2, 1)
    learn(twin, times=50)
    twin.cohort.observe(np.ones((1, 5, 3)), None, np.ones((1, 5), bool))
    twin.cohort.hyper["lr"] *= 2
    twin.fitness.append(3.0)
    twin.steps = 1000
    assert state_bytes(agent) == before and agent.spec == twin.spec
    learned = state_bytes(twin)
    learn(agent, times=50)
    assert state_bytes(twin) == learned
    assert agent.clone().index == 2


def test_a_clone_learns_as_its_parent_would():
    agent = trained()
    twin = agent.clone()
    learn(agent, times=20), learn(twin, times=20)
    assert state_bytes(agent) == state_bytes(twin)


def test_a_clone_keeps_schedule_horizon_and_engine():
    agent = make(lr_schedule="linear")
    agent.cohort.horizon, agent.cohort.engine = 100, "autograd"
    agent.steps = 50
    twin = agent.clone()
    assert twin.cohort.engine == "autograd"
    rate = twin.cohort.learning_rate(np.array([0]))
    assert rate == agent.cohort.learning_rate(np.array([0])) == pytest.approx(0.5 * (1 + 0.02) * 1e-2)


# Modules.


def test_modules_view_the_row():
    agents = [make(index=i) for i in range(3)]
    Population(agents)
    modules = [agent.networks_as_modules()["q"] for agent in agents]
    with torch.no_grad():
        modules[1][0].weight.fill_(0.5)
        modules[1][-1].bias[:] = torch.tensor([0.0, 9.0, 0.0, 0.0])
    obs = np.zeros((4, 3), np.float32)
    assert agents[1].get_action(obs).tolist() == [1] * 4
    assert not any(torch.equal(modules[i][0].weight, modules[1][0].weight) for i in (0, 2))
    learn(agents[1])
    q = agents[1].cohort.outputs("q", obs[None], np.array([1]))[0]
    assert np.allclose(modules[1](torch.from_numpy(obs)).detach(), q, atol=1e-6)
