from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferd.routing.claim import Claim
from inferd.routing.cost_model import CPU_DEMO, H100_8B
from inferd.routing.target import Target
from inferd.routing.work import PROMPT_TOKENS_MAX, work_of

TOKENS = st.integers(1, 300_000)


def test_an_idle_target_has_only_a_step_before_it() -> None:
    work = work_of(Target("t", 4, 0.0), H100_8B)
    assert (work.backlog_s, work.again_s) == (0.0, 0.0)
    assert work.step_s > 0


def test_a_prompt_counts_until_its_first_token_and_may_have_to_be_computed_again_after_it() -> None:
    target, claim = Target("t", 4, 0.0), Claim(4_000, 100)
    target.take(claim, 1, 0.0)
    before = work_of(target, CPU_DEMO)
    target.first_token(claim, 1)
    after = work_of(target, CPU_DEMO)
    assert before.backlog_s == after.again_s > 4.0
    assert before.again_s == after.backlog_s == 0.0


@given(st.lists(TOKENS, min_size=1, max_size=8))
def test_several_prompts_are_never_thought_to_be_quicker_than_each_alone(
    prompts: list[int],
) -> None:
    target = Target("t", 16, 0.0)
    for tokens in prompts:
        target.take(Claim(tokens, 1), 1, 0.0)
    alone_ms = sum(H100_8B.prefill_ms(min(tokens, PROMPT_TOKENS_MAX), 0) for tokens in prompts)
    assert work_of(target, H100_8B).backlog_s * 1e3 >= alone_ms * (1 - 1e-9)
