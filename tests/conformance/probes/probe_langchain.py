"""langchain's standard suites for chat models and embeddings, over langchain-openai."""

from __future__ import annotations

import os

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

SERVER = {"base_url": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"]}


class TestChat(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        return {
            **SERVER,
            "model": os.environ["MODEL"],
            "stream_usage": True,
            "use_responses_api": False,
            "max_tokens": 64,
        }

    @property
    def has_tool_choice(self):
        return True

    @property
    def supports_json_mode(self):
        return True

    @property
    def returns_usage_metadata(self):
        return True


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self):
        return {
            **SERVER,
            "model": os.environ["EMBEDDING_MODEL"],
            "check_embedding_ctx_length": False,
        }
