"""A prompt is counted exactly where its estimate would decide, and nowhere else."""

from __future__ import annotations

import pytest

from inferd.config.schema import Team
from inferd.errors import ContextLengthExceeded, RateLimited
from inferd.inference import InferenceRequest, Outcome
from inferd.quota.exact_counts import ExactCounts
from tests.paths.data_path import CollectedStream, DataPath


class Counting(ExactCounts):
    """Counts as told, without a tokenizer and its thread."""

    def __init__(self, tokens: int | None) -> None:
        super().__init__()
        self.tokens = tokens
        self.asked = 0

    def knows(self, pool: str) -> bool:
        return True

    async def count(self, request: InferenceRequest) -> int | None:
        self.asked += 1
        return self.tokens


async def test_far_from_every_edge_nothing_is_counted() -> None:
    exact = Counting(25)
    team = Team(name="search", tokens_per_s=1, burst_tokens=10_000)
    path = DataPath("w1", team=team, exact=exact)
    async with path.serving():
        await path.dispatch.run(path.request(context_tokens_max=4_096), CollectedStream())
    assert exact.asked == 0
    path.assert_at_rest()


async def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_claimed() -> None:
    exact = Counting(95)
    path = DataPath("w1", team=Team(name="search", tokens_per_s=1, burst_tokens=500), exact=exact)

    def request() -> InferenceRequest:
        return path.request(prompt_tokens_estimated=80, context_tokens_max=100)

    async with path.serving():
        with pytest.raises(ContextLengthExceeded, match=r"105 tokens \(95 in the messages"):
            await path.dispatch.run(request(), CollectedStream())
        exact.tokens = 100
        with pytest.raises(ContextLengthExceeded, match="resulted in 100 tokens"):
            await path.dispatch.run(request(), CollectedStream())
        exact.tokens = 90
        await path.dispatch.run(request(), CollectedStream())
    assert exact.asked == 3
    assert [row.outcome for row in path.rows] == [
        Outcome.REFUSED,
        Outcome.REFUSED,
        Outcome.COMPLETED,
    ]
    assert [row.prompt_tokens for row in path.rows[:2]] == [0, 0]
    path.assert_at_rest()


@pytest.mark.parametrize(("tokens", "fits"), [(25, True), (45, False)])
async def test_at_the_edge_of_a_bucket_the_count_decides_not_the_estimate(
    tokens: int, *, fits: bool
) -> None:
    """A bucket of 50: the estimate of 35 and 10 of output fits; the real count may not."""
    team = Team(name="search", tokens_per_s=1, burst_tokens=50)
    path = DataPath("w1", team=team, exact=Counting(tokens))
    request = path.request(prompt_tokens_estimated=35)
    async with path.serving():
        if fits:
            await path.dispatch.run(request, CollectedStream())
            with pytest.raises(RateLimited, match="35 needed"):
                await path.dispatch.run(path.request(prompt_tokens_estimated=35), CollectedStream())
        else:
            with pytest.raises(Exception, match="55 tokens, but team `search` can never"):
                await path.dispatch.run(request, CollectedStream())
    path.assert_at_rest()


async def test_what_cannot_be_counted_keeps_its_estimate() -> None:
    path = DataPath("w1", exact=Counting(None))
    async with path.serving():
        await path.dispatch.run(path.request(context_tokens_max=25), CollectedStream())
    assert [row.outcome for row in path.rows] == [Outcome.COMPLETED]
    path.assert_at_rest()


async def test_an_answer_without_a_limit_gets_what_the_counted_prompt_leaves() -> None:
    path = DataPath("w1", exact=Counting(30))
    request = path.request(
        output_tokens_given=False,
        output_tokens_max=30,
        context_tokens_max=50,
        prompt_tokens_estimated=40,
    )
    async with path.serving():
        await path.dispatch.run(request, CollectedStream())
    assert path.rows[0].completion_tokens == 20
    path.assert_at_rest()
