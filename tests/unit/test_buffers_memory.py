"""How much memory is free, from made-up proc and cgroup files."""

from __future__ import annotations

from pathlib import Path

from agilerl_exp.buffers.memory import free_bytes

GIB = 1 << 30


def write(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


MEMINFO = {"proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {8 * GIB // 1024} kB"}


def test_without_groups_the_kernel_decides(tmp_path):
    assert free_bytes(write(tmp_path, MEMINFO)) == 8 * GIB


def test_a_limit_on_a_parent_group_counts_without_droppable_files(tmp_path):
    group = "sys/fs/cgroup/slurm/job_7"
    files = MEMINFO | {
        "proc/self/cgroup": "0::/slurm/job_7/step_0",
        f"{group}/memory.max": 4 * GIB,
        f"{group}/memory.current": 3 * GIB,
        f"{group}/memory.stat": f"anon 1\ninactive_file {GIB}",
        f"{group}/step_0/memory.max": "max",
        f"{group}/step_0/memory.current": GIB,
        f"{group}/step_0/memory.stat": "inactive_file 0",
    }
    assert free_bytes(write(tmp_path, files)) == 2 * GIB


def test_version_one_groups_count_too(tmp_path):
    group = "sys/fs/cgroup/memory/docker"
    files = MEMINFO | {
        "proc/self/cgroup": "5:cpu:/docker\n4:memory:/docker",
        f"{group}/memory.limit_in_bytes": 2 * GIB,
        f"{group}/memory.usage_in_bytes": 3 * GIB,
        f"{group}/memory.stat": f"total_inactive_file {GIB // 2}",
    }
    assert free_bytes(write(tmp_path, files)) == 0


def test_a_system_that_tells_nothing(tmp_path):
    assert free_bytes(tmp_path) is None
