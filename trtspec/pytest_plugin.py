"""A pytest fixture for users: verify a running server in their own CI.

    def test_what_is_served_is_the_model(trtspec_verify):
        trtspec_verify("localhost:8001", reference="checkpoints/target", manifest="work/pair")

pytest imports this module in every run where trtspec is installed: nothing of it, and neither numpy
nor torch, is imported before the fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from trtspec.client.verify import VerifyReport


class TrtspecVerify(Protocol):
    """What the fixture is."""

    def __call__(
        self,
        url: str,
        *,
        reference: str | Path,
        tokenizer: str | Path | None = None,
        manifest: str | Path | None = None,
        **settings: Any,
    ) -> VerifyReport:
        """Return the report, or fail the test: what is served is not the reference, or nothing was compared.

        Args:
            reference: Hugging Face folder that the engines were built from.
            tokenizer: the folder of the tokenizer's files, where it is another.
            manifest: the pair or repository that is served, or its `trtspec.json`: says which dtype the
                engines compute in, the checkpoint's otherwise, what they were built from, and has their
                fingerprint.
            settings: fields of `trtspec.client.verify.Settings`; by default with all draft lengths that the
                pair was built for, without a manifest with those up to 8 that the server takes.

        Raises:
            EngineError: the manifest is none.
        """
        ...


@pytest.fixture
def trtspec_verify() -> Iterator[TrtspecVerify]:
    """Verify what is served against a Hugging Face checkpoint; see `TrtspecVerify`."""
    with ExitStack() as open_clients:

        def verify(
            url: str,
            *,
            reference: str | Path,
            tokenizer: str | Path | None = None,
            manifest: str | Path | None = None,
            **settings: Any,
        ) -> VerifyReport:
            from trtspec.client import Client
            from trtspec.client import verify as library
            from trtspec.engines.pair import manifest_at

            known = manifest_at(Path(manifest)) if manifest else None
            trusted = library.HuggingFaceReference(
                Path(reference),
                Path(tokenizer) if tokenizer else None,
                built_from=known.sources if known else {},
            )
            client = open_clients.enter_context(Client(url))
            longest = known.target.settings.max_draft_len if known else None
            defaults: dict[str, Any] = {
                "dtype": known.served_dtype if known else trusted.dtype,
                "fingerprint": known.fingerprint if known else None,
                "num_draft_tokens": library.all_lengths(longest),
                "skip_refused_lengths": "num_draft_tokens" not in settings,
            }
            chosen = library.Settings(**{**defaults, **settings})
            report = library.verify(client, trusted, chosen)
            defects = [finding for finding in report.findings if finding.verdict == "defect"]
            if defects:
                lines = "\n".join(f"{found.part}: {found.name}: {found.detail}" for found in defects)
                pytest.fail(f"{url}: {len(defects)} of {len(report.findings)} findings are defects\n{lines}")
            if not report.compared:
                pytest.fail(f"{url}: nothing was compared\n" + "\n".join(report.skipped))
            return report

        yield verify
