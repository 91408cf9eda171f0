"""`trtspec tune` without a pair: the formulas, and what others measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trtspec.cli.parts.result_tables import show


def show_published(as_json: bool) -> None:
    """Show published measurements beside what the formulas say."""
    from trtspec.build.tune.published import TABLES, published_as_json
    from trtspec.build.tune.tables import published_tables

    show(as_json, published_as_json(TABLES), published_tables(TABLES))


def show_theory(
    alpha: float,
    cost_ratio: float,
    as_json: bool,
    *,
    verify_cost: float,
    round_cost: float,
    gamma: int | None,
    max_draft_tokens: int,
    **unused: Any,
) -> None:
    """Show what α and c alone say of each draft length."""
    from trtspec.build.tune.outlook import outlook
    from trtspec.build.tune.tables import outlook_tables
    from trtspec.theory import Costs

    lengths = range(max_draft_tokens + 1) if gamma is None else (gamma,)
    found = outlook(alpha, Costs(cost_ratio, verify_cost, round_cost), lengths, max_draft_tokens)
    show(as_json, asdict(found), outlook_tables(found))
