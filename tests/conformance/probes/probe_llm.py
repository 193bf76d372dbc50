"""llm, the command line: streamed, whole, with a schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from probing import API_KEY, BASE_URL, MODEL, check, done

HOME = Path(os.environ["LLM_USER_PATH"])
HOME.mkdir(exist_ok=True)
ENTRY = {
    "model_id": "inferd",
    "model_name": MODEL,
    "api_base": BASE_URL,
    "api_key_name": "inferd",
    "supports_tools": True,
    "supports_schema": True,
}
# JSON is YAML.
(HOME / "extra-openai-models.yaml").write_text(json.dumps([ENTRY]))
(HOME / "keys.json").write_text(json.dumps({"inferd": API_KEY}))


def llm(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "inferd", "Say hello", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@check
def streamed():
    assert llm("-o", "max_tokens", "16").strip()


@check
def whole():
    assert llm("--no-stream", "-o", "max_tokens", "16").strip()


@check
def schema():
    assert set(json.loads(llm("--schema", "size int, big bool"))) == {"size", "big"}


done()
