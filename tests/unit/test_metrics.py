"""What is counted comes out under its name, bound to bounded labels."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from inferd import __version__
from inferd.inference import Outcome, Priority
from inferd.metrics import Metrics


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


def test_a_request_is_counted_under_all_its_names(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    traffic = metrics.traffic["search", "chat", "v1"]
    traffic.requests[Outcome.COMPLETED].inc()
    traffic.prompt_tokens_cached.inc(3)
    traffic.prompt_tokens_computed.inc(4)
    traffic.completion_tokens.inc(5)
    labels = {"team": "search", "model": "chat"}
    assert registry.get_sample_value(
        "inferd_requests_total", labels | {"version": "v1", "outcome": "completed"}
    )
    tokens = "inferd_prompt_tokens_total"
    assert registry.get_sample_value(tokens, labels | {"cached": "true"}) == 3
    assert registry.get_sample_value(tokens, labels | {"cached": "false"}) == 4
    assert registry.get_sample_value("inferd_completion_tokens_total", labels) == 5


def test_what_is_bound_is_bound_once(metrics: Metrics) -> None:
    assert metrics.pool["chat@v1"] is metrics.pool["chat@v1"]
    waits = metrics.pool["chat@v1"].queue_wait
    assert waits[Priority.BATCH] is waits["batch"]


def test_targets_are_met_or_missed(metrics: Metrics, registry: CollectorRegistry) -> None:
    model = metrics.model["chat", "v1"]
    model.met["ttft"].inc()
    model.missed["tpot"].inc(2)
    labels = {"model": "chat", "objective": "ttft", "met": "true"}
    assert registry.get_sample_value("inferd_slo_total", labels) == 1
    labels |= {"objective": "tpot", "met": "false"}
    assert registry.get_sample_value("inferd_slo_total", labels) == 2


def test_a_worker_is_in_one_state(metrics: Metrics, registry: CollectorRegistry) -> None:
    def states() -> dict[str, float | None]:
        return {
            state: registry.get_sample_value(
                "inferd_worker_state", {"worker": "chat-0", "state": state}
            )
            for state in ("loading", "warming", "ready")
        }

    worker = metrics.worker["chat-0"]
    worker.moved("loading", "warming")
    worker.moved("warming", "ready")
    assert states() == {"loading": 0, "warming": 0, "ready": 1}
    assert registry.get_sample_value(
        "inferd_worker_transitions_total", {"worker": "chat-0", "state": "ready"}
    )


def test_what_is_gone_is_no_longer_shown(metrics: Metrics, registry: CollectorRegistry) -> None:
    def show() -> None:
        metrics.worker["chat-0"].inflight_requests.set(1)
        metrics.pool["chat@v1"].queue_depth["batch"].set(1)
        metrics.team["search"].bucket_balance_tokens.set(1)

    def shown() -> set[str]:
        families = text_string_to_metric_families(metrics.exposition().decode())
        samples = [sample for family in families for sample in family.samples]
        return {v for s in samples for v in s.labels.values()} & {"chat-0", "chat@v1", "search"}

    show()
    metrics.pool["chat@v1"].retries.inc()
    assert shown() == {"chat-0", "chat@v1", "search"}
    metrics.forget_worker("chat-0")
    metrics.forget_team("search")
    metrics.forget_pool("chat@v1")
    assert shown() == {"chat@v1"}, "what a pool has counted stays"
    show()
    assert shown() == {"chat-0", "chat@v1", "search"}
    assert registry.get_sample_value("inferd_inflight_requests", {"worker": "chat-0"}) == 1


def test_a_client_cannot_invent_label_values(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.http_request("/v1/models", "GET", 200)
    metrics.http_request("/v1/models", "BREW", 405)
    metrics.http_request("/v1/models", "PROPFIND", 405)
    labels = {"route": "/v1/models", "method": "other", "status": "405"}
    assert registry.get_sample_value("inferd_http_requests_total", labels) == 2


def test_exposition_is_text_that_a_scraper_reads(metrics: Metrics) -> None:
    metrics.loop_lag_s.observe(0.002)
    metrics.worker_start["loading"].observe(17)
    metrics.config_reloads["applied"].inc()
    families = {
        family.name: family
        for family in text_string_to_metric_families(metrics.exposition().decode())
    }
    assert all(name.startswith("inferd_") for name in families)
    assert not any(name.endswith("_created") for name in families)
    (build,) = families["inferd_build_info"].samples
    assert build.labels["version"] == __version__
    assert "inferd_process_resident_memory_bytes" in families


def test_every_registry_has_its_own_metrics() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    Metrics(first).loop_lag_s.observe(1)
    Metrics(second)
    assert first.get_sample_value("inferd_loop_lag_seconds_count") == 1
    assert second.get_sample_value("inferd_loop_lag_seconds_count") == 0


def test_an_observation_counts_in_the_first_bucket_that_holds_it(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    waits = metrics.pool["chat@v1"].queue_wait[Priority.INTERACTIVE]
    for seconds in (0.0, 0.001, 0.0011, 60.0, 61.0):
        waits.observe(seconds)
    labels = {"pool": "chat@v1", "priority": "interactive"}

    def within(bound: str) -> float | None:
        return registry.get_sample_value("inferd_queue_wait_seconds_bucket", labels | {"le": bound})

    assert [within(le) for le in ("0.001", "0.005", "30.0", "60.0", "+Inf")] == [2, 3, 3, 4, 5]
    assert registry.get_sample_value("inferd_queue_wait_seconds_sum", labels) == 121.0021


def test_a_count_never_goes_back(metrics: Metrics) -> None:
    with pytest.raises(AssertionError):
        metrics.traffic["search", "chat", "v1"].completion_tokens.inc(-1)
