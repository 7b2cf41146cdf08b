"""tests/cases.md names tests that exist and leaves no case out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
TABLE = (TESTS / "cases.md").read_text()
COLLECTION = TESTS.parents[1] / "shared/cases/cases.jsonl"


def test_every_test_named_exists_and_every_case_test_is_named():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)
    assert len(named) > 60
    for file, test in named:
        assert f"\ndef {test}(" in (TESTS / file).read_text(), (file, test)
    for file in TESTS.glob("e2e/test_cases_*.py"):
        for test, numbers in re.findall(r"\ndef (test_((?:b\d+_)+)\w+)\(", file.read_text()):
            for number in re.findall(r"b(\d+)_", numbers):
                (row,) = [line for line in TABLE.splitlines() if line.startswith(f"| B{number} ")]
                assert test in row


def test_no_case_of_the_collection_is_left_out():
    if not COLLECTION.is_file():
        pytest.skip(f"no {COLLECTION}")
    cases = {case["id"]: case["area"] for case in map(json.loads, COLLECTION.read_text().splitlines())}
    rows = re.findall(r"^\| (B\d+) \| (\w+) \|", TABLE, re.M)
    assert len(rows) == len(dict(rows)) and dict(rows) == cases
