"""instructor: objects through tools and through a JSON schema."""

from __future__ import annotations

from typing import Literal

import instructor
from openai import OpenAI
from probing import API_KEY, BASE_URL, MODEL, check, done
from pydantic import BaseModel

SERVER = OpenAI(base_url=BASE_URL, api_key=API_KEY)
MESSAGES = [{"role": "user", "content": "A city"}]


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    stars: Literal[1, 2, 3]


def ask(mode):
    client = instructor.from_openai(SERVER, mode=mode)
    # The stop is for a model that chats on after its call: one cut by length is an error there.
    return client.chat.completions.create(
        model=MODEL,
        messages=list(MESSAGES),
        response_model=City,
        max_tokens=64,
        max_retries=1,
        stop=["\n\n"],
        temperature=0,
    )


@check
def tools():
    assert ask(instructor.Mode.TOOLS).name in {"Paris", "Rome"}


@check
def json_schema():
    assert ask(instructor.Mode.JSON_SCHEMA).stars in {1, 2, 3}


done()
