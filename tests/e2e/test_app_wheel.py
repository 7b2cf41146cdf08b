"""The built wheel in an empty folder: it holds everything that a run reads, and takes the user's `./conf`."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "--disable-pip-version-check", "-w", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True)


def test_it_holds_the_options_and_the_sources(site):
    ours = {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}
    ours = {path for path in ours if path.parts[0] != "local"}
    shipped = {
        path.relative_to(site / "agilerl_exp/conf") for path in site.glob("agilerl_exp/conf/**/*.yaml")
    }
    assert ours == shipped
    code = {
        path.relative_to(ROOT)
        for suffix in ("py", "c", "typed")
        for path in ROOT.glob(f"agilerl_exp/**/*.{suffix}")
    }
    assert code == {
        path.relative_to(site) for path in site.rglob("*") if path.suffix in {".py", ".c", ".typed"}
    }
    entry_points = next(site.glob("*.dist-info/entry_points.txt")).read_text()
    assert "agilerl-exp = agilerl_exp.app:main" in entry_points


def test_it_trains_in_an_empty_folder(site, tmp_path):
    (tmp_path / "conf/env").mkdir(parents=True)
    (tmp_path / "conf/env/mine.yaml").write_text("defaults: [/spec/env@_here_, _self_]\nid: Acrobot-v1\n")
    where = run(site, tmp_path, "-c", "import agilerl_exp.catalogue as c; print(c.CONF)")
    assert where.stdout.strip() == str(site / "agilerl_exp/conf")
    result = run(site, tmp_path, "-m", "agilerl_exp", "experiment=smoke", "env=mine", "hydra.run.dir=job")
    assert result.returncode == 0, result.stderr
    assert '"COMPLETED"' in (tmp_path / "job/status.json").read_text()
    script = run(site, tmp_path, "-c", "from agilerl_exp.app import main; main()", "--cfg", "job", "env=mine")
    assert "id: Acrobot-v1" in script.stdout
