"""Every endpoint, in the order of the documentation."""

from __future__ import annotations

from functools import partial
from typing import Final

from hearth.app.server import ollama, ollama_models
from hearth.app.server.anthropic import count_tokens, create_message
from hearth.app.server.cache import clear_cache, get_cache_stats
from hearth.app.server.chat import create_chat_completion
from hearth.app.server.completions import create_completion, generate_batch, generate_text
from hearth.app.server.endpoint import Endpoint
from hearth.app.server.models import (
    get_model_info,
    get_tokenizer_info,
    list_models,
    retrieve_model,
)
from hearth.app.server.monitoring import get_metrics, health
from hearth.app.server.openapi import get_capabilities, get_openapi
from hearth.app.server.responses import create_response
from hearth.app.server.tables import answers, ollama_answers
from hearth.app.server.tables import ollama as ollama_tables
from hearth.app.server.tables.anthropic import COUNT_TOKENS, CREATE_MESSAGE
from hearth.app.server.tables.chat import CHAT
from hearth.app.server.tables.common import OF_MODEL
from hearth.app.server.tables.responses import CREATE_RESPONSE
from hearth.app.server.tables.text import (
    APPLY_TEMPLATE,
    COMPLETIONS,
    DETOKENIZE,
    EMBEDDINGS,
    GENERATE,
    GENERATE_BATCH,
    RERANK,
    TOKENIZE,
)
from hearth.app.server.text import (
    apply_template,
    create_embedding,
    detokenize,
    rerank,
    tokenize,
)

_get = partial(Endpoint, "GET")
_post = partial(Endpoint, "POST")
_delete = partial(Endpoint, "DELETE")

ENDPOINTS: Final = (
    _post(
        "/v1/chat/completions",
        create_chat_completion,
        "Chat completion",
        table=CHAT,
        answer=answers.CHAT,
        event=answers.CHAT_EVENT,
    ),
    _post(
        "/v1/completions",
        create_completion,
        "Text completion, without a chat template",
        table=COMPLETIONS,
        answer=answers.COMPLETION,
        event=answers.COMPLETION_EVENT,
    ),
    _post(
        "/v1/responses",
        create_response,
        "OpenAI's Responses API",
        table=CREATE_RESPONSE,
        answer=answers.RESPONSE,
        event=answers.RESPONSE_EVENT,
    ),
    _post(
        "/v1/messages",
        create_message,
        "Anthropic's Messages API",
        table=CREATE_MESSAGE,
        answer=answers.MESSAGE,
        event=answers.MESSAGE_EVENT,
    ),
    _post(
        "/v1/messages/count_tokens",
        count_tokens,
        "Count the tokens of a conversation, as in Anthropic's API",
        table=COUNT_TOKENS,
        answer=answers.COUNT_TOKENS,
    ),
    _post(
        "/v1/embeddings",
        create_embedding,
        "Embeddings",
        table=EMBEDDINGS,
        answer=answers.EMBEDDINGS,
    ),
    _post(
        "/api/chat",
        ollama.chat,
        "Ollama's chat API",
        table=ollama_tables.CHAT,
        answer=ollama_answers.CHAT,
        event=ollama_answers.CHAT_LINE,
        stream_media=ollama.NDJSON,
    ),
    _post(
        "/api/generate",
        ollama.generate,
        "Ollama's completion API",
        table=ollama_tables.GENERATE,
        answer=ollama_answers.GENERATE,
        event=ollama_answers.GENERATE_LINE,
        stream_media=ollama.NDJSON,
    ),
    _post(
        "/api/embed",
        ollama.embed,
        "Ollama's embeddings API",
        table=ollama_tables.EMBED,
        answer=ollama_answers.EMBED,
    ),
    _post(
        "/api/embeddings",
        ollama.embeddings,
        "Ollama's older embeddings API, for one text",
        table=ollama_tables.EMBEDDINGS,
        answer=ollama_answers.EMBEDDINGS,
    ),
    _get(
        "/api/tags",
        ollama_models.tags,
        "List the models, as in Ollama's API",
        answer=ollama_answers.TAGS,
    ),
    _post(
        "/api/show",
        ollama_models.show,
        "Describe a model, as in Ollama's API",
        table=ollama_tables.SHOW,
        answer=ollama_answers.SHOW,
    ),
    _get(
        "/api/ps",
        ollama_models.ps,
        "List the loaded models, as in Ollama's API",
        answer=ollama_answers.PS,
    ),
    _get(
        "/api/version",
        ollama_models.version,
        "The version of Ollama's API that is served",
        answer=ollama_answers.VERSION,
    ),
    _post(
        "/api/pull",
        ollama_models.pull,
        "Download a model, as in Ollama's API",
        table=ollama_tables.PULL,
        answer=ollama_answers.DONE,
        event=ollama_answers.PULL_LINE,
        stream_media=ollama.NDJSON,
    ),
    _delete(
        "/api/delete",
        ollama_models.delete,
        "Delete a model, as in Ollama's API",
        table=ollama_tables.DELETE,
        answer=ollama_answers.DONE,
    ),
    _post(
        "/api/copy",
        ollama_models.copy,
        "Copy a model into the library folder, as in Ollama's API",
        table=ollama_tables.COPY,
        answer=ollama_answers.DONE,
    ),
    _post(
        "/api/create",
        ollama_models.not_offered(
            "Models cannot be created over HTTP.",
            "`hearth import FILE` adds a GGUF file or a folder of safetensors, `hearth quantize`"
            ' converts one, and [models."NAME"] in settings.toml sets a system prompt, template and'
            " sampling.",
        ),
        "Not offered: use hearth import",
        answer=ollama_answers.NEVER,
    ),
    _post(
        "/api/push",
        ollama_models.not_offered(
            "Models cannot be pushed from this server.",
            "Upload the file with another program, for example to the Hugging Face Hub.",
        ),
        "Not offered: models cannot be pushed",
        answer=ollama_answers.NEVER,
    ),
    _post(
        "/api/blobs/{digest}",
        ollama_models.not_offered(
            "Files cannot be uploaded over HTTP.",
            "Run `hearth import FILE` on the server's machine to add a GGUF file or a folder of"
            " safetensors.",
        ),
        "Not offered: use hearth import",
        answer=ollama_answers.NEVER,
    ),
    _post(
        "/v1/rerank",
        rerank,
        "Rank texts by relevance to a query",
        table=RERANK,
        answer=answers.RERANK,
    ),
    _post(
        "/v1/generate",
        generate_text,
        "Complete one prompt, with timings",
        table=GENERATE,
        answer=answers.GENERATE,
        event=answers.GENERATE_EVENT,
    ),
    _post(
        "/v1/generate/batch",
        generate_batch,
        "Complete several prompts, with timings",
        table=GENERATE_BATCH,
        answer=answers.GENERATE_BATCH,
    ),
    _post(
        "/tokenize",
        tokenize,
        "Tokenize a text",
        table=TOKENIZE,
        answer=answers.TOKENIZE,
    ),
    _post(
        "/detokenize",
        detokenize,
        "Convert token ids to text",
        table=DETOKENIZE,
        answer=answers.DETOKENIZE,
    ),
    _get(
        "/tokenizer_info",
        get_tokenizer_info,
        "Special tokens and the chat template",
        query=(OF_MODEL,),
        answer=answers.TOKENIZER_INFO,
    ),
    _post(
        "/apply-template",
        apply_template,
        "Render the prompt of a conversation",
        table=APPLY_TEMPLATE,
        answer=answers.APPLY_TEMPLATE,
    ),
    _get("/v1/models", list_models, "List the models", answer=answers.MODELS),
    _get("/v1/models/{name:path}", retrieve_model, "Describe a model", answer=answers.MODEL),
    _get(
        "/v1/capabilities",
        get_capabilities,
        "What every endpoint does with each field",
        answer=answers.CAPABILITIES,
    ),
    _get(
        "/openapi.json",
        get_openapi,
        "This API as an OpenAPI document",
        answer=answers.OPENAPI,
    ),
    _get(
        "/v1/model/info",
        get_model_info,
        "Properties of a model, loaded or not",
        query=(OF_MODEL,),
        answer=answers.MODEL_INFO,
    ),
    _get(
        "/v1/cache/stats",
        get_cache_stats,
        "Statistics of the KV cache",
        query=(OF_MODEL,),
        answer=answers.CACHE_STATS,
    ),
    _delete(
        "/v1/cache",
        clear_cache,
        "Drop the kept prefixes of the KV cache, also on disk",
        query=(OF_MODEL,),
        answer=answers.CLEARED,
    ),
    _get(
        "/metrics",
        get_metrics,
        "Metrics in Prometheus' format, or as JSON if the client accepts it",
        answer=answers.METRICS,
        media="text/plain",
    ),
    _get(
        "/health",
        health,
        "Whether the server is ready",
        answer=answers.HEALTH,
        unready=answers.NOT_READY,
    ),
)
