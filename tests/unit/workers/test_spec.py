from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferd.config.load import LoadedConfig
from inferd.config.schema import Config
from inferd.workers.spec import AttachedSpec, PoolSpec, WorkerSpec, pools_from_config

ROOT = Path("/srv/inferd")


def version(name: str = "1", **keys: Any) -> dict[str, Any]:
    return {"version": name, "weights": "models/chat", **keys}


def model(name: str = "chat", versions: tuple[dict[str, Any], ...] = (), **keys: Any) -> Any:
    versions = versions or (version(),)
    return {
        "name": name,
        "default_version": versions[0]["version"],
        "context_tokens_max": 4096,
        "output_tokens_max": 512,
        "versions": versions,
        **keys,
    }


def pools(*models: Any, **environ: str) -> list[PoolSpec]:
    config = Config.model_validate({"models": models})
    return pools_from_config(LoadedConfig(config, ROOT / "inferd.toml", ROOT), environ)


def spec(**keys: Any) -> WorkerSpec:
    (pool,) = pools(model(versions=(version(**keys),)))
    assert pool.worker is not None
    return pool.worker


def test_a_version_becomes_a_pool() -> None:
    (pool,) = pools(model(versions=(version("2026-11", workers={"count": 2, "drain_s": 5.0}),)))
    assert (pool.pool, pool.slug, pool.drain_s) == ("chat@2026-11", "chat-2026-11", 5.0)
    assert pool.worker is not None
    assert pool.worker.weights == ROOT / "models/chat"
    assert list(pool.workers()) == ["chat-2026-11-1", "chat-2026-11-2"]


def test_an_absolute_folder_stays_as_it_is() -> None:
    assert spec(weights="/models/chat").weights == Path("/models/chat")


def test_workers_of_others_have_ids_and_keys_of_their_own() -> None:
    attached = (
        {"url": "http://10.0.0.1:30000/", "key_env": "GPU_KEY"},
        {"url": "http://10.0.0.2:30000", "model": "their-name", "inflight_max": 7},
    )
    (pool,) = pools(
        model(versions=({"version": "1", "workers": {"count": 0}, "attached": attached},)),
        GPU_KEY="k1",
    )
    assert pool.worker is None
    assert pool.workers() == {
        "chat-1-a1": AttachedSpec("chat", "http://10.0.0.1:30000", "k1", 256),
        "chat-1-a2": AttachedSpec("their-name", "http://10.0.0.2:30000", None, 7),
    }


def test_a_key_shows_neither_in_the_text_of_a_spec_nor_in_its_hash() -> None:
    one = AttachedSpec("chat", "http://h:1", "secret-key", 1)
    assert "secret-key" not in repr(one)
    assert "secret-key" not in one.spec_hash
    assert one.spec_hash != AttachedSpec("chat", "http://h:1", "other", 1).spec_hash


def test_every_engine_knows_which_variables_are_not_for_it() -> None:
    attached = ({"url": "http://10.0.0.1:30000", "key_env": "GPU_KEY"},)
    first, second = pools(
        model(versions=(version(), version("2", attached=attached))), model("code"), GPU_KEY="x"
    )[::2]
    assert first.worker is not None
    assert second.worker is not None
    assert first.worker.secrets == second.worker.secrets == {"GPU_KEY"}
    assert first.worker.spec_hash == spec().spec_hash  # nobody is restarted for it


def test_pools_that_would_share_a_slug_get_one_each_whatever_their_order() -> None:
    one = model("a/b", versions=(version("c"),))
    two = model("a", versions=(version("b-c"),))
    slugs = {pool.pool: pool.slug for pool in pools(one, two)}
    assert len(set(slugs.values())) == 2
    assert all(slug.startswith("a-b-c-") for slug in slugs.values())
    assert slugs == {pool.pool: pool.slug for pool in pools(two, one)}


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z./_-]{0,3}", fullmatch=True),
            st.from_regex(r"[a-z0-9][a-z0-9.-]{0,3}", fullmatch=True),
        ),
        min_size=1,
        max_size=6,
        unique=True,
    )
)
def test_no_two_workers_share_an_id_and_every_id_is_a_folder_name(
    names: list[tuple[str, str]],
) -> None:
    attached = ({"url": "http://h:1"},)
    found = pools(
        *(
            model(name, versions=(version(one, workers={"count": 2}, attached=attached),))
            for name, one in names
        )
    )
    ids = [worker_id for pool in found for worker_id in pool.workers()]
    assert len(set(ids)) == 3 * len(names)
    assert all("/" not in worker_id and worker_id[0] != "." for worker_id in ids)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "models/other"},
        {"checksum": "sha256:" + "0" * 64},
        {"engine": {"running_max": 8}},
        {"engine": {"extra_args": ("--dtype", "float16")}},
        {"engine": {"env": {"A": "b"}}},
    ],
)
def test_what_an_engine_is_started_with_changes_the_hash(change: dict[str, Any]) -> None:
    assert spec(**change).spec_hash != spec().spec_hash


def test_what_only_the_gateway_acts_on_does_not() -> None:
    changed = spec(workers={"count": 3, "drain_s": 1.0, "restarts_per_hour_max": 0})
    assert changed.spec_hash == spec().spec_hash
    assert changed != spec()
