"""The benchmark of an authority's attribute keys goes by today's contracts: their quotas, and topics that are bound."""

from __future__ import annotations

import sys
from pathlib import Path

from policy_world import need_pymcl

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import abe_authority
import harness

from tallystick.ledger.contracts.settings import SETTINGS


def test_every_case_does_its_work_once() -> None:
    need_pymcl()
    done = []
    for case in abe_authority.authority_cases(others=SETTINGS["transaction_entries"].default + 1):
        if isinstance(case, harness.Rate):
            case.ours()
        done.append(case.name)
    assert done == ["authority_refresh", "authority_issue", "authority_epoch_100k", "authority_policy"]
