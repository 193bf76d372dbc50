"""What every section of inferd.toml is made of: the closed frozen model, patterns, ranges.

Each section says in its json_schema_extra what a change of it needs: `live`, `drain` or `restart`;
a key may say otherwise for itself.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MODEL_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$"
VARIABLE: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
CHECKSUM: Final = r"^sha256:[0-9a-f]{64}$"
ORIGIN: Final = r"^(\*|https?://[^\s/?#]+)$"
REGION: Final = r"^[a-z0-9-]{1,64}$"
STORE: Final = r"^(s3://[a-z0-9][a-z0-9._-]{1,62}(/[A-Za-z0-9._/-]*)?|[^:]+)$"
URL: Final = r"^https?://[^\s/?#]+(/[^\s?#]*)?$"

PATTERNS: Final = {
    NAME: "must start with a letter or digit, then letters, digits and . _ - (64 at most)",
    MODEL_NAME: "must start with a letter or digit, then letters, digits and . _ / - (128 at most);"
    " @ separates a version and : an adapter",
    VARIABLE: "must be the name of an environment variable, never the key itself",
    CHECKSUM: "must be sha256: and 64 lower-case hex digits, as `inferd engine manifest` shows",
    ORIGIN: "must be an origin, as https://app.example.org without a path, or * for every one",
    REGION: "must be a region's name, as eu-central-1",
    STORE: "must be a folder, or s3://bucket or s3://bucket/prefix",
    URL: "must be http://host:port or https://host:port, with a path only if the API is under one",
}
"""What each pattern wants, in words."""

Name = Annotated[str, Field(pattern=NAME)]
ModelName = Annotated[str, Field(pattern=MODEL_NAME)]
Folder = Annotated[str, Field(min_length=1, max_length=4_096)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Tokens = Annotated[int, Field(ge=1, le=100_000_000)]


class Section(BaseModel):
    """Frozen, strict, and closed: a key that means nothing is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
