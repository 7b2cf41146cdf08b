"""conf/ mirrors models/: every option composes and validates, no value repeats a default unseen."""

from __future__ import annotations

import itertools

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from agilerl_exp import app, catalogue
from agilerl_exp.models.experiment import ExperimentSpec

GROUPS = [*catalogue.PACKAGES, *catalogue.EXTRA_GROUPS]
OPTIONS = [(group, option.name) for group in GROUPS for option in catalogue.options(group, [catalogue.CONF])]
NEEDS = {
    ("env", "gym"): ["env.id=Acrobot-v1"],
    ("env", "custom"): ["env.entrypoint=mine.py:Env"],
    ("network", "custom"): ["algo.net_config.entrypoint=mine.py:Net"],
}
SHOWN_ON_PURPOSE = {  # values that equal the spec's default and stand in a yaml file for the reader
    ("training/exploration", "exponential", "eps_schedule"),
    ("tracker", "jsonl", "name"),
}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    app.register()


def config_of(*overrides: str) -> dict:
    with initialize_config_dir(str(catalogue.CONF), version_base="1.3"):
        tree = compose("config", list(overrides))
    return OmegaConf.to_container(tree, resolve=True)


def leaves_of(tree: dict, prefix: str = "") -> list[str]:
    """The dotted paths of a tree, of its branches too."""
    paths = []
    for key, value in tree.items():
        paths.append(prefix + key)
        if isinstance(value, dict):
            paths += leaves_of(value, f"{prefix}{key}.")
    return paths


def spec_of(*overrides: str) -> ExperimentSpec:
    return ExperimentSpec.from_config(config_of(*overrides))


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_composes_and_validates(group, name):
    spec = spec_of(f"{group}={name}", *NEEDS.get((group, name), []))
    assert ExperimentSpec.from_config(spec.to_config()) == spec


def test_every_group_of_the_folder_is_known_and_the_other_way_round():
    folders = {path.parent.relative_to(catalogue.CONF).as_posix() for path in catalogue.CONF.rglob("*.yaml")}
    assert folders - {".", "local"} == set(GROUPS)


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_says_what_it_is(group, name):
    option = next(o for o in catalogue.options(group, [catalogue.CONF]) if o.name == name)
    assert len(option.about) > 10


@pytest.mark.parametrize(("group", "name"), [o for o in OPTIONS if o[0] != "experiment"])
def test_no_value_repeats_a_default(group, name):
    option = next(o for o in catalogue.options(group, [catalogue.CONF]) if o.name == name)
    base = {
        "algo": f"algo/{name}",
        "evolution": f"evolution/{name}",
        "network": f"network/{name.removesuffix('_layernorm')}",
    }.get(group, group.split("/")[0])
    defaults = catalogue.bases()[base]
    for key, value in option.values.items():
        assert key in defaults, f"{group}/{name}.yaml: {key} is no setting"
        # YAML reads 1e-3 as text; Hydra reads it as a number.
        same = defaults[key] == (float(value) if isinstance(defaults[key], float) else value)
        assert same == ((group, name, key) in SHOWN_ON_PURPOSE), f"{group}/{name}.yaml: {key}={value}"


def test_config_yaml_shows_the_defaults_of_the_top_level():
    shown = yaml.safe_load((catalogue.CONF / "config.yaml").read_text())
    fields = ExperimentSpec.model_fields
    top = {key: value for key, value in shown.items() if key not in {"defaults", "hydra"}}
    assert top == {key: fields[key].get_default(call_default_factory=True) for key in top}
    assert set(fields) - set(top) == {"algo", "training", "env", "evolution", "tracker", "resume"}


def test_composed_tree_holds_every_field_of_every_spec():
    spec = spec_of()
    composed = config_of()
    assert {k: v for k, v in spec.to_config().items() if k != "resume"} == composed


def test_the_headline_command_means_what_it_says():
    spec = spec_of("algo=dqn", "buffer=per")
    assert spec.algo.name == "DQN"
    assert spec.env.id == "CartPole-v1"
    assert spec.training.replay_buffer.per_buffer
    assert not spec.training.replay_buffer.n_step_buffer
    assert (spec.training.max_steps, spec.training.pop_size, spec.training.target_score) == (50_000, 1, None)


@pytest.mark.parametrize(
    ("name", "per", "n_step"),
    [("standard", False, False), ("per", True, False), ("n_step", False, True), ("per_n_step", True, True)],
)
def test_buffer_options(name, per, n_step):
    ring = spec_of(f"buffer={name}", "training.replay_buffer.max_size=777").training.replay_buffer
    assert (ring.per_buffer, ring.n_step_buffer, ring.max_size) == (per, n_step, 777)


def test_an_algorithm_names_its_environment_unless_one_is_given():
    assert spec_of("algo=dqn").env.id == "CartPole-v1"
    assert spec_of("algo=dqn", "env=acrobot").env.id == "Acrobot-v1"
    assert spec_of("env=acrobot", "algo=dqn").env.id == "Acrobot-v1"
    assert spec_of("env.id=MountainCar-v0").env.id == "MountainCar-v0"


def test_exploration_options_set_the_schedule():
    linear = spec_of("training/exploration=linear", "training.eps_decay=4000").training
    assert (linear.eps_schedule, linear.eps_decay) == ("linear", 4000)
    assert spec_of("training/exploration=constant").training.epsilon.start == 0.1


def test_network_options_fill_the_algorithms_network():
    assert spec_of("network=mlp_layernorm", "algo.net_config.hidden_size=[8]").algo.net_config.model_dump(
        exclude={"min_layers", "max_layers", "min_nodes", "max_nodes"}
    ) == {
        "arch": "mlp",
        "hidden_size": [8],
        "activation": "ReLU",
        "layer_norm": True,
        "init": "torch",
    }


@pytest.mark.parametrize("buffer", ["standard", "per", "n_step", "per_n_step"])
def test_smoke_goes_with_every_buffer_and_exploration(buffer):
    for exploration in ("exponential", "linear"):
        spec = spec_of("experiment=smoke", f"buffer={buffer}", f"training/exploration={exploration}")
        assert spec.training.max_steps <= 1000


def test_interpolation_reaches_the_spec_as_a_number():
    spec = spec_of("training/exploration=exponential", "training.eps_decay=${algo.gamma}")
    assert spec.training.eps_decay == 0.99


def test_every_pair_of_environment_and_network_validates():
    envs = [name for group, name in OPTIONS if group == "env" and ("env", name) not in NEEDS]
    networks = [name for group, name in OPTIONS if group == "network"]
    for env, network in itertools.product(envs[:2], networks):
        assert spec_of(f"env={env}", f"network={network}", *NEEDS.get(("network", network), [])).env.id


def test_help_lists_every_group_option_and_setting():
    text = catalogue.help_text([catalogue.CONF], {})
    for group, name in OPTIONS:
        assert name in text and group in text
    composed = leaves_of(config_of())
    groups = set(catalogue.PACKAGES.values())
    leaves = [p for p in composed if p not in groups and not any(q.startswith(p + ".") for q in composed)]
    missing = [path for path in leaves if f"  {path}=" not in text and path != "algo.name"]
    assert not missing
    assert "  algo.lr=1e-3 " in text  # the value of the yaml option, not the spec's default


def test_setting_paths_cover_the_composed_tree():
    paths = catalogue.setting_paths()
    assert not [path for path in leaves_of(config_of()) if path not in paths]
