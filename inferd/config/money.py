"""The sections about money: prices of a version, a team's budget, how long the ledger is kept.

A price is an exact decimal: what TOML calls a float is read back as the digits that were written.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from inferd.config.locate import KeyPath
from inferd.config.problems import Problem
from inferd.config.section import Section

PRICE_DECIMALS_MAX: Final = 6
MONTH_TOKENS_MAX: Final = 1_000_000_000_000_000
Price = Annotated[float, Field(ge=0, le=100_000)]


class Prices(Section):
    """What a version's tokens cost, per million, in the currency of `[billing]`."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    input: Price = Field(0, description="prompt tokens that were computed")
    cached_input: Price | None = Field(
        None, description="prompt tokens from the prefix cache; unset: as `input`"
    )
    output: Price = Field(0, description="tokens written, reasoning included")
    batch_input: Price | None = Field(
        None, description="the same of batch requests; unset: as `input`"
    )
    batch_cached_input: Price | None = Field(
        None, description="unset: as `cached_input`, at most `batch_input`"
    )
    batch_output: Price | None = Field(None, description="unset: as `output`")


class Budget(Section):
    """What a team may use in a calendar month, UTC."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    money_per_month: float | None = Field(
        None, gt=0, le=1_000_000_000, description="in the currency of `[billing]`"
    )
    tokens_per_month: int | None = Field(
        None, ge=1, le=MONTH_TOKENS_MAX, description="prompt and output together"
    )
    warn_at: float = Field(0.8, gt=0, le=1, description="share at which the log warns, once")
    stop: bool = Field(
        default=True, description="429 `insufficient_quota` once it is spent; false: only warn"
    )


class Billing(Section):
    """Money, and how long the ledger keeps single requests."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = Field(
        "USD", description="what prices and budgets are in"
    )
    rows_kept_days: int = Field(
        90, ge=1, le=3_660, description="single requests; their sums by the hour stay"
    )


def exact(price: float) -> Decimal:
    """The decimal that was written: a float prints as the shortest digits that give it back."""
    return Decimal(repr(price))


def check_prices(path: KeyPath, prices: Prices) -> Iterator[Problem]:
    """Digits that no token can be priced by."""
    for key in Prices.model_fields:
        value = getattr(prices, key)
        if value is None:
            continue
        exponent = exact(value).normalize().as_tuple().exponent
        if isinstance(exponent, int) and -exponent > PRICE_DECIMALS_MAX:
            yield Problem(
                (*path, key), f"has more than {PRICE_DECIMALS_MAX} decimals: per million tokens"
            )


def check_budget(path: KeyPath, budget: Budget) -> Iterator[Problem]:
    """A budget of nothing limits nothing."""
    if budget.money_per_month is None and budget.tokens_per_month is None:
        yield Problem(path, "needs money_per_month or tokens_per_month", unless=path)
