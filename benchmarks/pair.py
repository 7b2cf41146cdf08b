"""Interleaves commands A B C A B C ... that print a `JSON {...}` line; prints medians and ratios of one field.

    python benchmarks/pair.py --base serial serial='python benchmarks/dqn.py --variant serial' \\
        ours='python benchmarks/dqn.py'
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--field", default="sps_cpu")
parser.add_argument("--base", required=True, help="name of the command that the others are divided by")
parser.add_argument("commands", nargs="+", metavar="NAME=COMMAND")
args = parser.parse_args()

commands = dict(command.split("=", 1) for command in args.commands)
values: dict[str, list[float]] = {name: [] for name in commands}
for _ in range(args.rounds):
    for name, command in commands.items():
        out = subprocess.run(shlex.split(command), capture_output=True, text=True)
        lines = [line for line in out.stdout.splitlines() if line.startswith("JSON ")]
        if not lines:
            sys.exit(f"{name} printed no JSON line:\n{out.stderr[-1000:]}")
        values[name].append(float(json.loads(lines[-1][5:])[args.field]))

print(f"{'':16} {'median':>10} {'min':>10} {'max':>10}   ratio to {args.base} (median of the rounds)")
for name, found in values.items():
    ratio = statistics.median(value / base for value, base in zip(found, values[args.base], strict=True))
    print(f"{name:16} {statistics.median(found):10.1f} {min(found):10.1f} {max(found):10.1f}   {ratio:.2f}")
