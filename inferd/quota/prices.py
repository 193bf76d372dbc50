"""What tokens cost: pure arithmetic on whole numbers, so that every sum is exact.

Amounts are integers of 1e-12 of the currency (`_pico`): a price per million tokens with six
decimals is a whole number of them for one token, and nothing is ever rounded. A cached prompt token
is billed as cached or as computed, never as both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from inferd.config.money import Prices, exact
from inferd.config.schema import Model
from inferd.inference import Priority, Usage

PICO_DIGITS: Final = 12
AMOUNT_PICO_MAX: Final = 2**63 - 1
"""What the ledger's column holds: some nine million of the currency for one request."""
_PER_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Rates:
    """Amounts of one token of each kind, in 1e-12 of the currency."""

    input_pico: int = 0
    cached_input_pico: int = 0
    output_pico: int = 0

    def cost_pico(self, usage: Usage) -> int:
        """The amount owed for `usage`."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        amount = (
            (usage.prompt_tokens - cached) * self.input_pico
            + cached * self.cached_input_pico
            + usage.completion_tokens * self.output_pico
        )
        return min(amount, AMOUNT_PICO_MAX)


FREE: Final = Rates()


class PriceList:
    """The prices now valid, by pool (`model@version`). `update` takes those of a new config."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._rates: dict[tuple[str, str], Rates] = {}
        self.update(models)

    def update(self, models: Iterable[Model]) -> None:
        self._rates = {
            (f"{model.name}@{version.version}", priority): rates_of(version.prices, priority)
            for model in models
            for version in model.versions
            for priority in Priority
        }

    def rates(self, pool: str, priority: str) -> Rates:
        """What a token costs there; `FREE` for a pool without prices or one that is gone."""
        return self._rates.get((pool, priority), FREE)

    def cost_pico(self, pool: str, priority: str, usage: Usage) -> int:
        """The amount owed for `usage`, at the prices of now."""
        return self.rates(pool, priority).cost_pico(usage)


def rates_of(prices: Prices, priority: Priority) -> Rates:
    """A version's prices for one priority; what is unset costs what it stands in for."""
    cached = prices.input if prices.cached_input is None else prices.cached_input
    if priority is not Priority.BATCH:
        return Rates(_pico(prices.input), _pico(cached), _pico(prices.output))
    of_input = prices.input if prices.batch_input is None else prices.batch_input
    of_cached = prices.batch_cached_input
    of_output = prices.output if prices.batch_output is None else prices.batch_output
    return Rates(
        _pico(of_input),
        _pico(min(cached, of_input) if of_cached is None else of_cached),
        _pico(of_output),
    )


def pico_of(amount: float) -> int:
    """An amount of the currency, as it was written, in 1e-12 of it."""
    return int(exact(amount).scaleb(PICO_DIGITS))


def amount_text(amount_pico: int, decimals_min: int = 2) -> str:
    """An amount in the currency, exactly, with at least so many decimals: `12.50`, `0.0000125`."""
    value = Decimal(amount_pico).scaleb(-PICO_DIGITS).normalize()
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return f"{value:.{max(decimals_min, -exponent)}f}"


def _pico(price: float) -> int:
    return int(exact(price).scaleb(PICO_DIGITS)) // _PER_MILLION
