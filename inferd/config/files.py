"""The section `files` of inferd.toml: where files are kept, how large they may be, how long."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from inferd.config.section import REGION, STORE, URL, VARIABLE, Seconds, Section

Bytes = Annotated[int, Field(ge=1, le=1_000_000_000_000_000)]
Variable = Annotated[str, Field(pattern=VARIABLE)]
Kept = Literal["assistants", "evals", "fine-tune", "user_data", "vision"]


class Files(Section):
    """Where files are kept, and how much of them."""

    model_config = ConfigDict(json_schema_extra={"reload": "live"})

    @property
    def remote(self) -> bool:
        """The store is no folder."""
        return self.store.startswith("s3://")

    store: str = Field(
        ".inferd/files",
        pattern=STORE,
        max_length=4_096,
        description="a folder, relative to this file's, or s3://bucket/prefix",
        json_schema_extra={"reload": "restart"},
    )
    endpoint: str | None = Field(
        None,
        pattern=URL,
        max_length=2_048,
        description="of an S3-compatible store that is not Amazon's",
        json_schema_extra={"reload": "restart"},
    )
    region: str = Field(
        "us-east-1",
        pattern=REGION,
        description="of the bucket",
        json_schema_extra={"reload": "restart"},
    )
    access_key_env: Variable | None = Field(
        None,
        description="variable with the store's access key id; unset: the machine's own role",
        json_schema_extra={"reload": "restart"},
    )
    secret_key_env: Variable | None = Field(
        None,
        description="variable with its secret key",
        json_schema_extra={"reload": "restart"},
    )
    session_token_env: Variable | None = Field(
        None,
        description="variable with the session token of temporary keys",
        json_schema_extra={"reload": "restart"},
    )
    timeout_s: Seconds = Field(
        30.0,
        description="for one call of the store, tries again included",
        json_schema_extra={"reload": "restart"},
    )
    purposes: tuple[Kept, ...] = Field(
        (), max_length=5, description="taken besides `batch`: kept and given back, no more"
    )
    bytes_max: int = Field(
        209_715_200, ge=1, le=8_589_934_592, description="largest file, whole or in parts"
    )
    team_bytes_max: Bytes = Field(10_737_418_240, description="all files of a team together")
    team_files_max: int = Field(
        10_000, ge=1, le=1_000_000, description="files of a team, pending uploads included"
    )
    transfers_max: int = Field(
        32, ge=1, le=1_000, description="uploads and downloads at the same time"
    )
    transfer_s_max: Seconds = Field(3_600.0, description="an upload or download takes no longer")
    life_s: int = Field(
        2_592_000,
        ge=3_600,
        le=315_360_000,
        description="a file that names no expires_after is kept this long",
    )
