"""What is counted of requests: `metrics.team[name]`, `.model[model, version]`, `.traffic[...]`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from inferd.metrics.declare import FIRST_TOKEN, PER_TOKEN, Bound, Declarations

_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


@dataclass(frozen=True, slots=True)
class TeamMetrics:
    """What one team has left."""

    bucket_balance_tokens: Gauge


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """How fast one version of a model answers, and whether that is as promised."""

    ttft_s: Histogram
    time_per_output_token_s: Histogram
    met: Bound[str, Counter]  # by objective: ttft, tpot
    missed: Bound[str, Counter]


@dataclass(frozen=True, slots=True)
class TrafficMetrics:
    """What one team has asked of one version of a model."""

    requests: Bound[str, Counter]  # by outcome
    prompt_tokens_cached: Counter
    prompt_tokens_computed: Counter
    completion_tokens: Counter
    cost: Counter
    estimated: Counter


class OfRequests(Declarations):
    """Traffic by team, model and version, and whether it is as promised."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._declare_requests()
        self.team = Bound(self._bind_team)
        self.model = Bound(self._bind_model)
        self.traffic = Bound(self._bind_traffic)
        """By team, model and version."""

    def _declare_requests(self) -> None:
        self._requests = self._counter(
            "inferd_requests", "team model version outcome", "Requests, by how they ended."
        )
        self._prompt_tokens = self._counter(
            "inferd_prompt_tokens",
            "team model cached",
            "Prompt tokens; cached: not computed again.",
        )
        self._completion_tokens = self._counter(
            "inferd_completion_tokens", "team model", "Tokens generated."
        )
        self._cost = self._counter(
            "inferd_cost", "team model version", "Money owed, in the currency of [billing]."
        )
        self._estimated = self._counter(
            "inferd_estimated_requests",
            "team model version",
            "Requests whose engine told no usage: their tokens are estimated.",
        )
        unbilled_tokens = self._counter(
            "inferd_unbilled_tokens", "reason", "Tokens that engines computed and nobody pays for."
        )
        self.unbilled_tokens = Bound[str, Counter](unbilled_tokens.labels)
        self._ttft = self._histogram(
            "inferd_ttft_seconds", "model version", "Arrival to first output.", FIRST_TOKEN
        )
        self._time_per_output_token = self._histogram(
            "inferd_time_per_output_token_seconds",
            "model version",
            "Mean of a streamed answer, after its first output.",
            PER_TOKEN,
        )
        self._slo = self._counter(
            "inferd_slo", "model objective met", "Answers that met or missed a target."
        )
        http_requests = self._counter(
            "inferd_http_requests", "route method status", "HTTP requests on both listeners."
        )
        self._http = Bound[tuple[str, str, str], Counter](lambda key: http_requests.labels(*key))
        self._bucket_balance_tokens = self._gauge(
            "inferd_bucket_balance_tokens", "team", "Tokens that a team can spend at once."
        )

        recordings = self._counter(
            "inferd_recordings", "team outcome", "Texts of teams that want theirs kept."
        )
        self.recordings = Bound[tuple[str, str], Counter](lambda key: recordings.labels(*key))
        """By team and outcome: `kept`, `dropped`."""
        self.budget_used_ratio = self._gauge(
            "inferd_budget_used_ratio", "team kind", "Share of this month's budget that is spent."
        )

    def http_request(self, route: str, method: str, status: int) -> None:
        """Count one answer. `route` is the route's pattern, never the path that was asked for."""
        known = method if method in _METHODS else "other"
        self._http[route, known, str(status)].inc()

    def ttft_counts(self) -> dict[str, list[tuple[float, float]]]:
        """By pool: upper bounds in seconds, and how many first outputs came within each."""
        return _by_pool(self._ttft)

    def tpot_counts(self) -> dict[str, list[tuple[float, float]]]:
        """By pool: the same of the mean time per output token."""
        return _by_pool(self._time_per_output_token)

    def forget_team(self, team: str) -> None:
        self.team.pop(team, None)
        self._bucket_balance_tokens.remove_by_labels({"team": team})
        self.budget_used_ratio.remove_by_labels({"team": team})

    def _bind_team(self, team: str) -> TeamMetrics:
        return TeamMetrics(bucket_balance_tokens=self._bucket_balance_tokens.labels(team))

    def _bind_model(self, name: tuple[str, str]) -> ModelMetrics:
        model, version = name
        return ModelMetrics(
            ttft_s=self._ttft.labels(model, version),
            time_per_output_token_s=self._time_per_output_token.labels(model, version),
            met=Bound(lambda objective: self._slo.labels(model, objective, "true")),
            missed=Bound(lambda objective: self._slo.labels(model, objective, "false")),
        )

    def _bind_traffic(self, name: tuple[str, str, str]) -> TrafficMetrics:
        team, model, version = name
        return TrafficMetrics(
            requests=Bound(partial(self._requests.labels, team, model, version)),
            prompt_tokens_cached=self._prompt_tokens.labels(team, model, "true"),
            prompt_tokens_computed=self._prompt_tokens.labels(team, model, "false"),
            completion_tokens=self._completion_tokens.labels(team, model),
            cost=self._cost.labels(team, model, version),
            estimated=self._estimated.labels(team, model, version),
        )


def _by_pool(histogram: Histogram) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for sample in next(iter(histogram.collect())).samples:
        if sample.name.endswith("_bucket"):
            pool = f"{sample.labels['model']}@{sample.labels['version']}"
            found.setdefault(pool, []).append((float(sample.labels["le"]), sample.value))
    return found
