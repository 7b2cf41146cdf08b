"""Evolution in the loop: when it runs, what travels with a member, who is replaced when learning fails."""

import json

import numpy as np
import pytest
from effects import effect
from small import Watch, job, loop_of, metrics, ran, spec_of

from agilerl_exp.errors import DivergenceError

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


@effect("TrainingSpec.hpo")
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
        kept.append(all(before["bank"][role].tobytes() == after["bank"][role].tobytes() for role in before["bank"]))
        assert before["hyper"] == after["hyper"] and before["net_config"] == after["net_config"]
        assert [agent.steps for agent in population.agents] == steps and len(set(steps)) == 1
        return out

    loop.evolution.step = watch
    loop.run()
    loop.envs.close()
    assert kept == [True] * 3


def test_a_mutated_value_is_the_value_that_is_used_and_shown(tmp_path):
    kinds = {"no_mut": 0, "arch": 0, "params": 0, "rl_hp": 1}
    settings = POP | {"evolution": {"name": "tournament", "probabilities": kinds, "rl_hp_selection": {"lr": None}}}
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


def test_every_member_founds_a_line(tmp_path):
    rows = lineage(job(tmp_path, POP))
    founders = rows[:4]
    assert [row["member"] for row in founders] == [0, 1, 2, 3] and {row["kind"] for row in founders} == {"founder"}
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


def test_the_spec_of_an_evolving_run():
    assert spec_of(POP).evolves and not spec_of({"training.hpo": True}).evolves
