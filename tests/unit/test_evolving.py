"""Evolution in the loop: when it runs, what travels with a member, who is replaced when learning fails."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from effects import effect
from small import Watch, job, loop_of, metrics, ran, spec_of

from agilerl_exp.errors import ConfigError, DivergenceError
from agilerl_exp.evolution.mutation import draw_kinds, shake
from agilerl_exp.models.evolution import MultiFrequencySpec, MutationProbabilities, TournamentSpec
from agilerl_exp.models.training import TrainingSpec
from agilerl_exp.training.evolving import evolution_of

POP = {"training.pop_size": 4, "training.hpo": True, "training.max_steps": 128}
ALL = {"no_mut": 0, "arch": 1, "params": 1, "activation": 1, "rl_hp": 1}


class Births(Watch):
    """Remembers births and the fitness at each generation too."""

    def __init__(self) -> None:
        super().__init__()
        self.births: list[tuple[int, list]] = []
        self.warnings: list[str] = []

    def at_births(self, loop, births):
        self.births.append((loop.generation, births))

    def warn(self, text):
        self.warnings.append(text)


def watched(settings, run=True):
    loop = loop_of(POP | settings)
    loop.session = Births()
    if run:
        loop.run()
        loop.envs.close()
    return loop


def lineage(folder):
    return [json.loads(line) for line in (folder / "lineage.jsonl").read_text().splitlines()]


@effect("TrainingSpec.hpo", "ExperimentSpec.evolution", "NoEvolutionSpec.name")
def test_hpo_switches_evolution():
    assert watched({}).session.births
    assert not watched({"training.hpo": False}).session.births
    assert not watched({"training.pop_size": 1}).session.births
    assert not watched({"evolution": {"name": "none"}}).session.births


def test_nothing_is_selected_or_mutated_after_the_last_evaluation():
    loop = watched({})
    assert [generation for generation, _ in loop.session.births] == [0, 1, 2, 3] and loop.generation == 4
    best = int(np.argmax([agent.fitness[-1] for agent in loop.population.agents]))
    assert loop.population.agents[best].fitness[-1] == loop.session.returns[-1].mean(1).max()


def test_the_elite_goes_on_untouched_and_steps_never_go_back():
    loop = watched({"evolution": {"name": "tournament", "probabilities": ALL}}, run=False)
    step, kept = loop.evolution.step, []

    def watch(population, fitness, generation, probe):
        best = int(np.argmax(fitness))
        before = population.agents[best].state_dict()
        steps = [agent.steps for agent in population.agents]
        out = step(population, fitness, generation, probe)
        after = population.agents[best].state_dict()
        kept.append(
            all(before["bank"][role].tobytes() == after["bank"][role].tobytes() for role in before["bank"])
        )
        assert before["hyper"] == after["hyper"] and before["net_config"] == after["net_config"]
        assert [agent.steps for agent in population.agents] == steps and len(set(steps)) == 1
        return out

    loop.evolution.step = watch
    loop.run()
    loop.envs.close()
    assert kept == [True] * 3


def test_a_mutated_value_is_the_value_that_is_used_and_shown(tmp_path):
    kinds = {"no_mut": 0, "arch": 0, "params": 0, "rl_hp": 1}
    settings = POP | {
        "evolution": {"name": "tournament", "probabilities": kinds, "rl_hp_selection": {"lr": None}}
    }
    folder = job(tmp_path, settings)
    now = {i: 1e-3 for i in range(4)}
    rows = iter(metrics(folder, "train"))
    births = [row for row in lineage(folder) if row["kind"] != "founder"]
    assert births and all(row["kind"] in ("rl_hp", "none") for row in births)
    for generation in range(4):
        before = dict(now)
        for birth in (row for row in births if row["generation"] == generation):
            now[birth["member"]] = before[birth["hyper_parent"]]
            if birth["kind"] == "rl_hp":
                assert birth["name"] == "lr" and birth["old"] == now[birth["member"]] != birth["new"]
                assert 1e-5 <= birth["new"] <= 1e-2
                now[birth["member"]] = birth["new"]
        shown = [row for row in metrics(folder, "train") if row["generation"] == generation]
        assert shown and all(row["lr"] == now[row["member"]] for row in shown)
    assert len(set(now.values())) > 1 and rows


def test_a_mutated_learning_rate_is_the_one_that_moves_the_weights():
    loop = watched({"training.pop_size": 2, "algo.lr_schedule": "constant"}, run=False)
    cohort, _ = loop.population.cohorts[0], loop.population.set_column("lr", np.array([0.0, 1e-3]))
    before = cohort.bank.weights.clone()
    loop.evolution = None
    loop.run()
    loop.envs.close()
    assert (cohort.bank.weights[0] == before[0]).all() and not (cohort.bank.weights[1] == before[1]).all()


def test_experience_goes_with_the_member_and_shared_rings_stay():
    loop = watched({"training.replay_buffer.n_step_buffer": True}, run=False)
    copies = []
    loop.buffer._buffer.copy_members = lambda members, sources: copies.append((members, sources))
    loop.run()
    loop.envs.close()
    assert len(copies) == 3
    for (_, births), (members, sources) in zip(loop.session.births[1:], copies, strict=True):
        moved = {birth.member: birth.parent for birth in births if birth.parent != birth.member}
        assert dict(zip(members.tolist(), sources.tolist(), strict=True)) == moved


def test_a_member_that_diverges_is_frozen_ranked_last_and_replaced():
    loop = watched({}, run=False)
    update, poisoned = loop.update, []

    def poison(members, batch_size, beta):
        if not poisoned:
            agent = loop.population.agents[2]
            agent.cohort.bank.weights[agent.row] = np.nan
            poisoned.append(True)
        update(members, batch_size, beta)

    loop.update = poison
    loop.run()
    loop.envs.close()
    (warning,) = loop.session.warnings
    assert warning.startswith("member 2: the loss is not finite at env step")
    assert loop.session.births[1][1] and not loop.diverged.any() and loop.population.finite.all()
    birth = next(birth for birth in loop.session.births[1][1] if birth.member == 2)
    assert birth.parent != 2 and np.isfinite(birth.fitness)


def test_without_evolution_a_divergence_stops_the_run():
    loop = watched({"training.hpo": False}, run=False)
    loop.population.agents[1].cohort.bank.weights[1] = np.nan
    with pytest.raises(DivergenceError, match="member 1: the loss is not finite"):
        loop.run()
    loop.envs.close()


def test_when_all_members_diverge_the_run_stops():
    loop = watched({}, run=False)
    loop.population.cohorts[0].bank.weights[...] = np.nan
    with pytest.raises(DivergenceError):
        loop.run()
    loop.envs.close()


KINDS = {"no_mut": "none", "arch": "arch", "params": "params", "activation": "activation", "rl_hp": "rl_hp"}


def kinds(**weights):
    return {"probabilities": dict.fromkeys(KINDS, 0) | weights}


@effect(
    "MutationProbabilities.no_mut",
    "MutationProbabilities.arch",
    "MutationProbabilities.params",
    "MutationProbabilities.activation",
    "MutationProbabilities.rl_hp",
)
def test_kinds_come_by_their_weights():
    spec = MutationProbabilities(no_mut=1, arch=2, params=3, activation=0, rl_hp=4)
    rng = np.random.default_rng(0)
    drawn = Counter(draw_kinds(spec, rng, 4000))
    sure = Counter(draw_kinds(spec, rng, 4000, sure=True))
    assert [drawn[kind] / 4000 for kind in KINDS.values()] == pytest.approx(
        [0.1, 0.2, 0.3, 0, 0.4], abs=0.025
    )
    assert [sure[kind] / 4000 for kind in KINDS.values()] == pytest.approx(
        [0, 2 / 9, 3 / 9, 0, 4 / 9], abs=0.025
    )
    for name, kind in KINDS.items():
        session = watched({"evolution": kinds(**{name: 1})}).session
        found = {birth.kind for _, births in session.births[1:] for birth in births}
        assert found <= {kind, "none"} and kind in found


@effect("MutationProbabilities.new_layer")
def test_new_layer_decides_between_layers_and_widths():
    for share, nouns in ((0.0, {"add_node", "remove_node"}), (1.0, {"add_layer", "remove_layer"})):
        settings = kinds(arch=1, new_layer=share)
        births = watched({"evolution": settings, "algo.net_config.hidden_size": [64]}).session.births[1:]
        assert {birth.name.split()[0] for _, group in births for birth in group if birth.name} <= nouns


@effect("MutatingSpec.activations")
def test_activations_come_from_the_list():
    births = watched({"evolution": kinds(activation=1) | {"activations": ["Tanh", "ReLU"]}}).session.births[
        1:
    ]
    changes = {(b.old, b.new) for _, group in births for b in group if b.kind == "activation"}
    assert changes and changes <= {("ReLU", "Tanh"), ("Tanh", "ReLU")}


@effect("MutatingSpec.mutation_sd")
def test_noise_is_of_the_size_that_is_asked_for():
    changes = {}
    for sd in (0.0, 0.1):
        agent = loop_of({"algo.net_config.hidden_size": [200, 200]}).population.agents[0]
        weight, target = (agent.cohort.bank.views(role)[2][0] for role in ("weights", "target"))
        bias = agent.cohort.bank.views("weights")[3][0].clone()
        old = weight.clone().numpy()
        for seed in range(10):  # until one takes this matrix
            shake(agent.cohort, 0, sd, np.random.default_rng(seed))
            moved = (weight.numpy() != old) & (old != 0)
            if moved.any():
                break
        assert torch.equal(weight, target) and torch.equal(agent.cohort.bank.views("weights")[3][0], bias)
        ratio = abs(weight.numpy() - old)[moved] / abs(old)[moved]
        changes[sd] = moved.mean(), np.median(ratio)
    assert changes[0.0][0] == pytest.approx(0.01, abs=0.002)  # strong noise and fresh values alone
    assert changes[0.1][0] == pytest.approx(0.1, abs=0.01)
    assert changes[0.1][1] == pytest.approx(0.0745, abs=0.01)  # about the median of |N(0, 0.1)|


@effect("MutatingSpec.pretrain_mutation")
def test_members_may_be_mutated_before_training():
    settings = kinds(no_mut=5, rl_hp=1)
    rates = [
        watched({"evolution": settings | {"pretrain_mutation": flag}}, run=False) for flag in (False, True)
    ]
    values = []
    for loop in rates:
        births = loop.evolution.start(loop.population, lambda slot: None)
        values.append([birth.new for birth in births])
        loop.envs.close()
    assert all(new == values[0][0] for new in values[0])
    assert all(new != values[0][0] for new in values[1])


@effect("EvolutionSpec.init")
def test_members_may_start_all_over_the_ranges():
    loop = watched({"evolution": {"init": "sample"}, "training.pop_size": 8}, run=False)
    births = loop.evolution.start(loop.population, lambda slot: None)
    loop.envs.close()
    rates = loop.population.column("lr")
    assert len(set(rates)) == 8 and rates.min() >= 1e-5 and rates.max() <= 1e-2
    widths = [birth.new["net_config"]["hidden_size"][0] for birth in births]
    assert len(set(widths)) > 1 and all(w in (16, 32, 64, 128, 256, 512) for w in widths)
    assert len(set(loop.population.column("batch_size"))) > 1
    assert (loop.population.column("eps_end") <= loop.population.column("eps_start")).all()
    assert [cohort.horizon for cohort in loop.population.cohorts] == [loop.horizon] * len(
        loop.population.cohorts
    )


def test_members_that_start_all_over_some_ranges_have_the_rest_as_configured():
    some = {"lr": {"min": 1e-4, "max": 1e-2}, "batch_size": None}
    loop = watched(
        {"evolution": {"init": "sample", "rl_hp_selection": some}, "training.pop_size": 8}, run=False
    )
    rest = {name: loop.population.column(name) for name in loop.agent.hyperparameters if name not in some}
    loop.evolution.start(loop.population, lambda slot: None)
    loop.envs.close()
    assert {"eps_start", "eps_end", "eps_decay", "gamma", "learn_step", "tau"} <= rest.keys()
    for name, column in rest.items():
        assert (loop.population.column(name) == column).all()
    assert len(set(loop.population.column("lr"))) == 8


@effect("EvolutionSpec.seed")
def test_a_seed_of_its_own_changes_selection_alone():
    lines = [watched({"evolution": {"seed": seed}, "seed": 3}).session.births for seed in (None, 3, 4)]
    assert lines[0] == lines[1] != lines[2]


def test_integers_are_shown_as_integers(tmp_path):
    folder = job(tmp_path, POP | {"evolution": {"name": "pbt"}})
    rows = metrics(folder, "train")
    values = [row[name] for row in rows for name in ("batch_size", "learn_step")]
    for row in lineage(folder):
        for tree in (row["old"], row["new"]):
            if isinstance(tree, dict):
                values += [tree[name] for name in ("batch_size", "learn_step") if name in tree]
    assert values and all(type(value) is int for value in values)


def test_every_member_founds_a_line(tmp_path):
    rows = lineage(job(tmp_path, POP))
    founders = rows[:4]
    assert [row["member"] for row in founders] == [0, 1, 2, 3] and {row["kind"] for row in founders} == {
        "founder"
    }
    assert founders[0]["new"]["lr"] == 1e-3 and founders[0]["new"]["net_config"]["hidden_size"] == [8]
    assert all(row["parent"] is None for row in founders)
    assert all(row["fitness"] is not None for row in rows[4:])


def test_one_member_is_told_that_nothing_evolves(tmp_path, capsys):
    job(tmp_path, {"training.hpo": True})
    assert "one member: nothing evolves" in capsys.readouterr().err


def test_all_env_steps_are_counted(tmp_path):
    folder = job(tmp_path, POP)
    result = json.loads((folder / "result.json").read_text())
    loop = ran(POP)
    final = result["total_env_steps"] - int(loop.env_step.sum()) - loop.evaluation_steps
    assert sum(result["env_steps"]) == int(loop.env_step.sum()) and final >= 4 * 100


def test_an_evolution_that_does_not_fit_is_refused_without_a_config():
    spec, training = spec_of().algo, TrainingSpec(pop_size=8)
    with pytest.raises(ConfigError, match=r"rl_hp_selection.lrr: cannot mutate here"):
        evolution_of(TournamentSpec(rl_hp_selection={"lrr": None}), spec, training, 0)
    with pytest.raises(ConfigError, match=r"n_subpopulations=3: training.pop_size=8 must be a multiple"):
        evolution_of(MultiFrequencySpec(n_subpopulations=3), spec, training, 0)
