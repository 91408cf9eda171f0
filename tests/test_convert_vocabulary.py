"""A draft that gets the width of its target's vocabulary, for engines whose logits have to match."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny_checkpoints import make_model, save

from trtspec.build.checkpoint import open_checkpoint
from trtspec.build.convert.converter import plan_conversion, write_plan
from trtspec.build.convert.splitting import cut_vocabulary
from trtspec.errors import BuildError


@given(st.integers(1, 40), st.data())
def test_ranks_together_hold_every_wanted_row_in_order(rows: int, data: st.DataObject) -> None:
    wanted, tp = data.draw(st.integers(1, 2 * rows)), data.draw(st.integers(1, 9))
    missing = max(wanted - rows, 0)
    expected = [row if row < rows else row - missing for row in range(wanted)]
    found: list[int | None] = []
    shares = set()
    for rank in range(tp):
        blocks = cut_vocabulary(rows, 8, wanted, tp, rank)
        shares.add(sum(block.filled_rows for block in blocks))
        for block in blocks:
            own = list(range(*block.rows))
            found += own + [None] * (block.filled_rows - len(own))
    assert found[:wanted] == expected
    assert set(found[wanted:]) <= {None}  # zero rows, up to a multiple of the ranks
    assert len(shares) == 1


def convert_to(folder: Path, vocabulary: int | None, tp: int, **changes: object) -> Path:
    source = save(make_model("qwen25_tied", **changes), folder / "source")
    plan = plan_conversion(open_checkpoint(source), "trtllm", None, tp, 1, vocabulary=vocabulary)
    output = folder / "converted"
    output.mkdir()
    write_plan(plan, output)
    return output


def matrices(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The embedding and the head of all ranks."""
    ranks = [load_file(file) for file in sorted(folder.glob("rank*.safetensors"))]
    for rank in ranks:
        assert rank["transformer.vocab_embedding.weight"].equal(
            ranks[0]["transformer.vocab_embedding.weight"]
        )
    return ranks[0]["transformer.vocab_embedding.weight"], torch.cat(
        [rank["lm_head.weight"] for rank in ranks]
    )


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("wanted", [64, 101, 130])
def test_embedding_and_head_get_the_wanted_rows_and_the_rest_stays(
    tmp_path: Path, wanted: int, tp: int
) -> None:
    output = convert_to(tmp_path, wanted, tp)
    whole = load_file(tmp_path / "source" / "model.safetensors")["model.embed_tokens.weight"]
    kept, missing = min(wanted, 101), max(wanted - 101, 0)
    expected = torch.cat([whole[:kept], whole[101 - missing :] if missing else whole[:0]])
    embedding, head = matrices(output)
    assert embedding.equal(expected)
    assert head[:wanted].equal(expected)
    assert len(head) == -(-wanted // tp) * tp
    assert json.loads((output / "config.json").read_text())["vocab_size"] == wanted


def test_ids_that_were_added_never_have_the_largest_logit(tmp_path: Path) -> None:
    # All logits below zero, as some models have them: a row of zeros would win every time.
    output = convert_to(tmp_path, 130, 1)
    _, head = matrices(output)
    hidden = torch.randn(64, head.shape[1], generator=torch.Generator().manual_seed(1))
    logits = hidden @ head.T
    assert (logits[:, 101:].amax(1) <= logits[:, :101].amax(1)).all()


def test_a_vocabulary_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="101 rows cannot become one of 203; take models of one family"):
        convert_to(tmp_path, 203, 1)
