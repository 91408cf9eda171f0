"""Is what is served the model it was made from? Answers of a running server against a reference.

from trtspec.client import Client
from trtspec.client.verify import HuggingFaceReference, Settings, verify

with Client("localhost:8001") as client:
    report = verify(client, HuggingFaceReference(folder), Settings(num_draft_tokens=range(6)))
assert report.ok, report.mismatches
"""

from trtspec.choices import AUTO, DTYPES, PARTS, Dtype, Part
from trtspec.client._prompts import read_texts
from trtspec.client.verify.findings import Finding
from trtspec.client.verify.greedy import Case, Difference, Judge, Token, compare_greedy
from trtspec.client.verify.huggingface import HuggingFaceReference
from trtspec.client.verify.prompts import DEFAULT_PROMPTS
from trtspec.client.verify.reference import Reference
from trtspec.client.verify.report import VerifyReport
from trtspec.client.verify.verification import Settings, Verification, all_lengths, verify
from trtspec.dtype_noise import Noise

__all__ = [
    "AUTO",
    "DEFAULT_PROMPTS",
    "DTYPES",
    "PARTS",
    "Case",
    "Difference",
    "Dtype",
    "Finding",
    "HuggingFaceReference",
    "Judge",
    "Noise",
    "Part",
    "Reference",
    "Settings",
    "Token",
    "Verification",
    "VerifyReport",
    "all_lengths",
    "compare_greedy",
    "read_texts",
    "verify",
]
