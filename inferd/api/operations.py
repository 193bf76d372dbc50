"""The endpoints that a worker answers, on one screen: path, kind of model, way in, way out."""

from __future__ import annotations

from typing import Final

from inferd.api import completions, embeddings, parameters, responses, tokenize
from inferd.api.inference_endpoint import Operation
from inferd.api.schema import parse_chat
from inferd.inference import Endpoint, ModelKind
from inferd.upstream.answer import chat_answer
from inferd.upstream.chat_relay import ChatRelay
from inferd.upstream.embedding_answer import embedding_answer
from inferd.upstream.responses_answer import ResponseRelay, response_answer
from inferd.upstream.text_answer import TextRelay, text_answer

_CHAT: Final = frozenset({ModelKind.CHAT})
_EMBEDDING: Final = frozenset({ModelKind.EMBEDDING})

OPERATIONS: Final = (
    Operation(
        Endpoint.CHAT,
        "Answer a conversation.",
        parameters.TABLES,
        ("messages",),
        _CHAT,
        parse_chat,
        chat_answer,
        ChatRelay,
    ),
    Operation(
        Endpoint.COMPLETIONS,
        "Write on from a prompt.",
        completions.TABLES,
        ("prompt",),
        _CHAT,
        completions.parse_completion,
        text_answer,
        TextRelay,
    ),
    Operation(
        Endpoint.EMBEDDINGS,
        "Turn texts into vectors.",
        embeddings.TABLES,
        ("input",),
        _EMBEDDING,
        embeddings.parse_embedding,
        embedding_answer,
    ),
    Operation(
        Endpoint.RESPONSES,
        "Answer an input; nothing is stored.",
        responses.TABLES,
        ("input",),
        _CHAT,
        responses.parse_response,
        response_answer,
        ResponseRelay,
    ),
    Operation(
        Endpoint.INPUT_TOKENS,
        "Count the tokens of an input.",
        responses.TABLES,
        ("input",),
        _CHAT,
        tokenize.parse_input_tokens,
        tokenize.count_answer,
    ),
    Operation(
        Endpoint.TOKENIZE,
        "Turn texts or messages into tokens.",
        tokenize.TABLES,
        (),
        _CHAT | _EMBEDDING,
        tokenize.parse_tokenize,
        tokenize.tokens_answer,
    ),
)
