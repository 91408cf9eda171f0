"""The picture of speculation: what was drafted in every round, what of it was kept, and why.

found = trace(open_pair(Path("work/pair")), "def main(", num_draft_tokens=4)
for round in found.rounds:
    print([token.verdict for token in round.drafted], round.added.text)
"""

from trtspec.triton_repo.trace.record import Added, Drafted, Round, Trace, trace

__all__ = ["Added", "Drafted", "Round", "Trace", "trace"]
