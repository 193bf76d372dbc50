"""The endpoints that a worker answers, on one screen: path, kind of model, way in, way out."""

from __future__ import annotations

from typing import Final

from inferd.api.completions import parse_completion
from inferd.api.embeddings import parse_embedding
from inferd.api.inference_endpoint import Operation
from inferd.api.responses import parse_response
from inferd.api.schema import parse_chat
from inferd.api.tokenize import count_answer, parse_input_tokens, parse_tokenize, tokens_answer
from inferd.inference import Endpoint, ModelKind
from inferd.upstream.answer import chat_answer
from inferd.upstream.embedding_answer import embedding_answer
from inferd.upstream.relay import ChatRelay
from inferd.upstream.responses_answer import ResponseRelay, response_answer
from inferd.upstream.text_answer import TextRelay, text_answer

_CHAT: Final = frozenset({ModelKind.CHAT})
_EMBEDDING: Final = frozenset({ModelKind.EMBEDDING})

OPERATIONS: Final = (
    Operation(Endpoint.CHAT, _CHAT, parse_chat, chat_answer, ChatRelay),
    Operation(Endpoint.COMPLETIONS, _CHAT, parse_completion, text_answer, TextRelay),
    Operation(Endpoint.EMBEDDINGS, _EMBEDDING, parse_embedding, embedding_answer),
    Operation(Endpoint.RESPONSES, _CHAT, parse_response, response_answer, ResponseRelay),
    Operation(Endpoint.INPUT_TOKENS, _CHAT, parse_input_tokens, count_answer),
    Operation(Endpoint.TOKENIZE, _CHAT | _EMBEDDING, parse_tokenize, tokens_answer),
)
