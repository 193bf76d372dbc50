"""LlamaIndex's OpenAILike: complete, chat, stream."""

from __future__ import annotations

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from probing import API_KEY, BASE_URL, MODEL, check, done

SERVER = {"model": MODEL, "api_base": BASE_URL, "api_key": API_KEY, "max_tokens": 16}
CHAT = OpenAILike(**SERVER, is_chat_model=True)
TEXT = OpenAILike(**SERVER, is_chat_model=False)
HELLO = [ChatMessage(role="user", content="Say hello")]


@check
def chat():
    assert CHAT.chat(HELLO).message.content


@check
def chat_stream():
    assert "".join(part.delta for part in CHAT.stream_chat(HELLO))


@check
def complete_over_chat():
    assert CHAT.complete("Say hello").text


@check
def complete():
    assert TEXT.complete("Once upon").text


@check
def complete_stream():
    assert "".join(part.delta for part in TEXT.stream_complete("Once upon"))


done()
