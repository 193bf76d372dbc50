"""Money. Goal: every amount is exact, a cached token is never billed twice, zero is zero.

Method: against fractions, which know nothing of how prices are kept.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.config.money import Prices
from inferd.config.schema import Model
from inferd.config.version import AttachedWorker, Version
from inferd.inference import Priority, Usage
from inferd.quota.prices import AMOUNT_PICO_MAX, PriceList, amount_text, pico_of, rates_of

MICROS = st.integers(0, 100_000_000_000)
TOKENS = st.integers(0, 10_000_000)


def written(micros: int) -> float:
    """A price as TOML gives it, of a number of millionths."""
    return float(f"{micros // 1_000_000}.{micros % 1_000_000:06}")


@given(MICROS, MICROS, MICROS, TOKENS, TOKENS, TOKENS)
def test_an_amount_is_exactly_the_sum_of_its_tokens(
    input_: int, cached: int, output: int, prompt: int, hit: int, completion: int
) -> None:
    prices = Prices(input=written(input_), cached_input=written(cached), output=written(output))
    usage = Usage(
        prompt_tokens=prompt, cached_tokens=min(hit, prompt), completion_tokens=completion
    )
    hit = usage.cached_tokens
    owed = Fraction((prompt - hit) * input_ + hit * cached + completion * output, 10**12)
    amount = rates_of(prices, Priority.INTERACTIVE).cost_pico(usage)
    assert Fraction(amount, 10**12) == min(owed, Fraction(AMOUNT_PICO_MAX, 10**12))


def test_more_cached_than_prompt_is_billed_as_the_prompt() -> None:
    rates = rates_of(Prices(input=10, cached_input=1, output=0), Priority.INTERACTIVE)
    assert rates.cost_pico(Usage(prompt_tokens=5, cached_tokens=9)) == 5 * 1_000_000


def test_zero_is_zero() -> None:
    usage = Usage(prompt_tokens=10**9, cached_tokens=10**8, completion_tokens=10**9)
    assert rates_of(Prices(), Priority.BATCH).cost_pico(usage) == 0
    prices = Prices(input=0.5, cached_input=0, output=0)
    assert rates_of(prices, Priority.INTERACTIVE).cost_pico(Usage(5, 5, 7)) == 0


@pytest.mark.parametrize(
    ("prices", "rates"),
    [
        ({"input": 2, "output": 8}, (2, 2, 8)),
        ({"input": 2, "cached_input": 1, "output": 8, "batch_output": 4}, (2, 1, 4)),
        ({"input": 2, "cached_input": 1, "output": 8, "batch_input": 0.5}, (0.5, 0.5, 8)),
        ({"input": 2, "batch_input": 1, "batch_cached_input": 0}, (1, 0, 0)),
    ],
)
def test_what_a_batch_costs_where_its_price_is_unset(
    prices: dict[str, float], rates: tuple[float, ...]
) -> None:
    found = rates_of(Prices(**prices), Priority.BATCH)
    per_million = (found.input_pico, found.cached_input_pico, found.output_pico)
    assert per_million == tuple(round(rate * 1_000_000) for rate in rates)


def test_a_pool_that_is_gone_costs_nothing() -> None:
    prices = PriceList([_model(Prices(input=1))])
    assert prices.cost_pico("chat@1", Priority.INTERACTIVE, Usage(3)) == 3_000_000
    assert prices.cost_pico("chat@2", Priority.INTERACTIVE, Usage(3)) == 0
    prices.update([_model(Prices(input=2))])
    assert prices.cost_pico("chat@1", Priority.INTERACTIVE, Usage(3)) == 6_000_000


@pytest.mark.parametrize(
    ("pico", "text"),
    [
        (0, "0.00"),
        (1, "0.000000000001"),
        (150_000, "0.00000015"),
        (12_500_000_000_000, "12.50"),
        (10**19, "10000000.00"),
        (100 * 10**12, "100.00"),
    ],
)
def test_amounts_are_shown_exactly(pico: int, text: str) -> None:
    assert amount_text(pico) == text


def test_an_amount_of_the_file_is_what_was_written() -> None:
    assert pico_of(0.1) == 10**11
    assert pico_of(2_000) == 2_000 * 10**12


def _model(prices: Prices) -> Model:
    version = Version(version="1", attached=(AttachedWorker(url="http://h:1"),), prices=prices)
    return Model(
        name="chat",
        default_version="1",
        context_tokens_max=10,
        output_tokens_max=5,
        versions=(version,),
    )
