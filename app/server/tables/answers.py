"""JSON schemas of each endpoint's 200 response and of the data of one event of its stream.

The responses have no other fields.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from hearth.app.server.schema import Json
from hearth.backends.contract.events import Timings

TEXT: Final[Json] = {"type": "string"}
COUNT: Final[Json] = {"type": "integer", "minimum": 0}
NUMBER: Final[Json] = {"type": "number"}
AMOUNT: Final[Json] = {"type": "number", "minimum": 0}
FLAG: Final[Json] = {"type": "boolean"}
SHARE: Final[Json] = {"type": "number", "minimum": 0, "maximum": 1}
OBJECT: Final[Json] = {"type": "object"}


def one(*values: object) -> Json:
    """One of `values`, which may be None."""
    return {"enum": list(values)}


def many(schema: Json) -> Json:
    """An array of values of `schema`."""
    return {"type": "array", "items": schema}


def or_null(schema: Json) -> Json:
    """A value of `schema`, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def exactly(required: Json, optional: Json | None = None) -> Json:
    """An object of these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


NOTED: Final[Json] = {"notices": {"type": "array", "items": TEXT}}
"""An optional field of every response to a request with a body."""


def answer(required: Json, optional: Json | None = None) -> Json:
    """A response of these fields, and optional notices."""
    return exactly(required, {**(optional or {}), **NOTED})


def table_of(schema: Json) -> Json:
    """An object with arbitrary names and values of `schema`."""
    return {"type": "object", "additionalProperties": schema}


_NAMED: Final[Json] = {"param": or_null(TEXT), "code": TEXT}
ERROR: Final = exactly({"error": exactly({"message": TEXT, "type": TEXT, **_NAMED})})
ANTHROPIC_ERROR: Final = exactly(
    {
        "type": one("error"),
        "error": exactly({"type": TEXT, "message": TEXT, **_NAMED}, {"details": OBJECT}),
    }
)
OLLAMA_ERROR: Final = exactly({"error": TEXT, **_NAMED})

TIMINGS: Final = exactly(
    {
        field.name: many(COUNT) if field.name.endswith("_tokens") else AMOUNT
        for field in fields(Timings)
    }
)
USAGE: Final = exactly(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": exactly({"cached_tokens": COUNT}),
        "completion_tokens_details": exactly({"reasoning_tokens": COUNT}),
    }
)
_PROMPT_USAGE: Final = exactly({"prompt_tokens": COUNT, "total_tokens": COUNT})
MEASURED: Final[Json] = {"timings": TIMINGS, **NOTED}
REASON: Final = one("stop", "length", "tool_calls")


TOKEN_IDS: Final[Json] = {"token_ids": many(COUNT)}
PROMPT_TOKENS: Final[Json] = {
    "prompt_token_ids": many(COUNT),
    "prompt_logprobs": many(or_null(table_of(OBJECT))),
}


def _completion(kind: str, choice: Json) -> Json:
    return exactly(
        {
            "id": TEXT,
            "object": one(kind),
            "created": COUNT,
            "model": TEXT,
            "choices": many(choice),
            "system_fingerprint": TEXT,
            "usage": USAGE,
        },
        {**MEASURED, **PROMPT_TOKENS},
    )


_TOKEN: Final[Json] = {"token": TEXT, "logprob": NUMBER, "bytes": or_null(many(COUNT))}
_TOKENS: Final = many(exactly({**_TOKEN, "top_logprobs": many(exactly(_TOKEN))}))
LOGPROBS: Final = exactly({"content": _TOKENS, "refusal": {"type": "null"}})
_CALL: Final = exactly(
    {
        "id": TEXT,
        "type": one("function"),
        "function": exactly({"name": TEXT, "arguments": TEXT}),
    }
)
CHAT: Final = _completion(
    "chat.completion",
    exactly(
        {
            "index": COUNT,
            "message": exactly(
                {
                    "role": one("assistant"),
                    "content": or_null(TEXT),
                    "refusal": {"type": "null"},
                },
                {"reasoning_content": TEXT, "reasoning": TEXT, "tool_calls": many(_CALL)},
            ),
            "logprobs": or_null(LOGPROBS),
            "finish_reason": REASON,
        },
        TOKEN_IDS,
    ),
)
TEXT_LOGPROBS: Final = exactly(
    {
        "tokens": many(TEXT),
        "token_logprobs": many(or_null(NUMBER)),
        "top_logprobs": many(or_null(table_of(NUMBER))),
        "text_offset": many(COUNT),
    }
)


def _text_choice(reason: Json) -> Json:
    return exactly(
        {
            "index": COUNT,
            "text": TEXT,
            "logprobs": or_null(TEXT_LOGPROBS),
            "finish_reason": reason,
        },
        {**TOKEN_IDS, **PROMPT_TOKENS},
    )


COMPLETION: Final = _completion("text_completion", _text_choice(REASON))
EMBEDDINGS: Final = answer(
    {
        "object": one("list"),
        "data": many(
            exactly(
                {
                    "object": one("embedding"),
                    "index": COUNT,
                    "embedding": {"anyOf": [many(NUMBER), TEXT]},
                }
            )
        ),
        "model": TEXT,
        "usage": _PROMPT_USAGE,
    }
)
RERANK: Final = answer(
    {
        "object": one("list"),
        "model": TEXT,
        "results": many(
            exactly(
                {"index": COUNT, "relevance_score": NUMBER}, {"document": exactly({"text": TEXT})}
            )
        ),
        "usage": _PROMPT_USAGE,
    }
)

_ITEM: Final[Json] = {"id": TEXT, "status": one("completed", "incomplete")}
_OUTPUT: Final[Json] = {
    "anyOf": [
        exactly(
            {
                **_ITEM,
                "type": one("message"),
                "role": one("assistant"),
                "content": many(
                    exactly(
                        {
                            "type": one("output_text"),
                            "text": TEXT,
                            "annotations": many(OBJECT),
                            "logprobs": _TOKENS,
                        }
                    )
                ),
            }
        ),
        exactly(
            {
                **_ITEM,
                "type": one("function_call"),
                "call_id": TEXT,
                "name": TEXT,
                "arguments": TEXT,
            },
            {"namespace": TEXT},
        ),
        exactly(
            {
                **_ITEM,
                "type": one("reasoning"),
                "summary": many(OBJECT),
                "content": many(exactly({"type": one("reasoning_text"), "text": TEXT})),
            }
        ),
    ]
}
RESPONSE: Final = answer(
    {
        "id": TEXT,
        "object": one("response"),
        "created_at": AMOUNT,
        "completed_at": or_null(AMOUNT),
        "status": one("completed", "incomplete"),
        "model": TEXT,
        "output": many(_OUTPUT),
        "usage": exactly(
            {
                "input_tokens": COUNT,
                "input_tokens_details": exactly(
                    {"cached_tokens": COUNT, "cache_write_tokens": COUNT}
                ),
                "output_tokens": COUNT,
                "output_tokens_details": exactly({"reasoning_tokens": COUNT}),
                "total_tokens": COUNT,
            }
        ),
        "error": {"type": "null"},
        "incomplete_details": or_null(exactly({"reason": one("max_output_tokens")})),
        "background": one(False),
        "instructions": or_null(TEXT),
        "max_output_tokens": or_null(COUNT),
        "metadata": table_of(TEXT),
        "parallel_tool_calls": FLAG,
        "previous_response_id": {"type": "null"},
        "reasoning": exactly({"effort": or_null(TEXT), "summary": {"type": "null"}}),
        "store": one(False),
        "temperature": AMOUNT,
        "text": exactly({"format": OBJECT}),
        "tool_choice": {"anyOf": [TEXT, OBJECT]},
        "tools": many(
            exactly(
                {
                    "type": one("function"),
                    "name": TEXT,
                    "description": or_null(TEXT),
                    "parameters": or_null(OBJECT),
                    "strict": or_null(FLAG),
                },
                {"namespace": TEXT},
            )
        ),
        "top_logprobs": COUNT,
        "top_p": SHARE,
        "truncation": one("auto", "disabled"),
        "user": or_null(TEXT),
    }
)
MESSAGE: Final = answer(
    {
        "id": TEXT,
        "type": one("message"),
        "role": one("assistant"),
        "model": TEXT,
        "content": many(
            {
                "anyOf": [
                    exactly({"type": one("text"), "text": TEXT}),
                    exactly({"type": one("thinking"), "thinking": TEXT, "signature": TEXT}),
                    exactly({"type": one("tool_use"), "id": TEXT, "name": TEXT, "input": OBJECT}),
                ]
            }
        ),
        "stop_reason": one("end_turn", "max_tokens", "tool_use", "stop_sequence"),
        "stop_sequence": or_null(TEXT),
        "usage": exactly(
            dict.fromkeys(
                (
                    *("input_tokens", "output_tokens"),
                    *("cache_creation_input_tokens", "cache_read_input_tokens"),
                ),
                COUNT,
            )
        ),
    }
)
COUNT_TOKENS: Final = answer({"input_tokens": COUNT})

GENERATED: Final[dict[str, Any]] = {
    "text": TEXT,
    "finish_reason": REASON,
    "tokens_generated": COUNT,
    "prompt_tokens": COUNT,
    "cached_tokens": COUNT,
    "latency_ms": AMOUNT,
    "optimization_used": one("none", "basic", "full"),
}
GENERATE: Final = answer({"model": TEXT, **GENERATED})
GENERATE_BATCH: Final = answer(
    {
        "model": TEXT,
        "results": many(exactly({"index": COUNT, **GENERATED})),
        "tokens_generated": COUNT,
        "cached_tokens": COUNT,
        "total_latency_ms": AMOUNT,
        "throughput_tokens_per_sec": AMOUNT,
        "optimization_used": one("none", "basic", "full"),
    }
)
TOKENIZE: Final = answer(
    {
        "tokens": {"anyOf": [many(COUNT), many(exactly({"id": COUNT, "piece": TEXT}))]},
        "count": COUNT,
    },
    {"token_strs": many(TEXT)},
)
DETOKENIZE: Final = answer({"content": TEXT, "prompt": TEXT})
APPLY_TEMPLATE: Final = exactly({"prompt": TEXT, "count": COUNT, "notices": many(TEXT)})

_PROGRESS: Final = exactly({"processed": COUNT, "total": COUNT})


def _chunk(kind: str, choice: Json) -> Json:
    """A chunk in OpenAI's format, or the error that ends a failed stream."""
    chunk = exactly(
        {
            "id": TEXT,
            "object": one(kind),
            "created": COUNT,
            "model": TEXT,
            "system_fingerprint": TEXT,
            "choices": many(choice),
        },
        {
            "usage": or_null(USAGE),
            "prompt_progress": _PROGRESS,
            **MEASURED,
            **PROMPT_TOKENS,
        },
    )
    return {"anyOf": [chunk, ERROR]}


_CALL_PIECE: Final = exactly(
    {"index": COUNT, "function": exactly({"arguments": TEXT}, {"name": TEXT})},
    {"id": TEXT, "type": one("function")},
)
CHAT_EVENT: Final = _chunk(
    "chat.completion.chunk",
    exactly(
        {
            "index": COUNT,
            "delta": exactly(
                {},
                {
                    "role": one("assistant"),
                    "content": TEXT,
                    "reasoning_content": TEXT,
                    "reasoning": TEXT,
                    "tool_calls": many(_CALL_PIECE),
                },
            ),
            "logprobs": or_null(LOGPROBS),
            "finish_reason": or_null(REASON),
        },
        TOKEN_IDS,
    ),
)
COMPLETION_EVENT: Final = _chunk("text_completion", _text_choice(or_null(REASON)))


def _typed(*types: str) -> Json:
    return {"type": "object", "properties": {"type": one(*types)}, "required": ["type"]}


_RESPONSE: Final = _typed(
    *(
        f"response.{name}"
        for name in (
            *("created", "in_progress", "completed", "incomplete", "failed"),
            *("output_item.added", "output_item.done", "content_part.added", "content_part.done"),
            *("output_text.delta", "output_text.done"),
            *("reasoning_text.delta", "reasoning_text.done"),
            *("function_call_arguments.delta", "function_call_arguments.done"),
        )
    ),
    "error",
)
RESPONSE_EVENT: Final[Json] = {
    **_RESPONSE,
    "properties": {**_RESPONSE["properties"], "sequence_number": COUNT},
    "required": ["type", "sequence_number"],
}
MESSAGE_EVENT: Final = _typed(
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop", "ping", "error"),
)
GENERATE_EVENT: Final[Json] = {"anyOf": [exactly({"text": TEXT}), answer(GENERATED), ERROR]}

MODEL: Final = exactly(
    {
        "id": TEXT,
        "object": one("model"),
        "created": COUNT,
        "owned_by": TEXT,
        "type": one("model"),
        "display_name": TEXT,
        "created_at": TEXT,
        "lifecycle": one("active"),
        **dict.fromkeys(("max_input_tokens", "max_tokens", "max_model_len"), or_null(COUNT)),
        "hearth": exactly(
            {
                "loaded": or_null(FLAG),
                "size_bytes": or_null(COUNT),
                "architecture": or_null(TEXT),
                "quantization": or_null(TEXT),
                "parameters": or_null(COUNT),
                "trained_context": or_null(COUNT),
                "context": or_null(COUNT),
                "capabilities": or_null(many(TEXT)),
                "error": or_null(TEXT),
            }
        ),
    }
)
MODELS: Final = exactly(
    {
        "object": one("list"),
        "data": many(MODEL),
        "has_more": one(False),
        "first_id": TEXT,
        "last_id": TEXT,
    }
)
MODEL_INFO: Final = exactly(
    {
        "model_name": TEXT,
        "loaded": FLAG,
        **dict.fromkeys(
            ("architecture", "quantization", "backend_version", "kv_type"), or_null(TEXT)
        ),
        **dict.fromkeys(
            (
                *("parameters", "size_bytes", "trained_context", "batch_size", "threads"),
                *("max_sequence_length", "max_sessions", "kv_bytes_per_token", "gpu_layers"),
            ),
            or_null(COUNT),
        ),
        "backend": TEXT,
        "load_s": or_null(AMOUNT),
        "capabilities": or_null(many(TEXT)),
        "notices": many(TEXT),
        "error": or_null(TEXT),
    }
)
TOKENIZER_INFO: Final = exactly(
    {
        "model": TEXT,
        **dict.fromkeys(
            ("bos_token", "eos_token", "unk_token", "pad_token", "chat_template"), or_null(TEXT)
        ),
    }
)

_TIER: Final = exactly({"tokens": COUNT, "size_mb": AMOUNT})
_SPECULATION: Final = exactly(
    {
        "drafted_tokens": many(COUNT),
        "accepted_tokens": many(COUNT),
        "acceptance": many(SHARE),
        "tokens_per_step": or_null(AMOUNT),
        "drafters": table_of(exactly({"drafted": COUNT, "accepted": COUNT})),
        "declined_drafts": COUNT,
    }
)
_HELD: Final[Json] = {
    "total_entries": COUNT,
    "total_size_mb": AMOUNT,
    "hit_rate": or_null(SHARE),
    "tiers": exactly(dict.fromkeys(("live", "kept", "pinned", "offloaded", "disk"), _TIER)),
    "disk_read_tokens": COUNT,
    "disk_written_mb": AMOUNT,
    "speculation": _SPECULATION,
}
CACHE_STATS: Final = exactly({**_HELD, "models": many(exactly({"model": TEXT, **_HELD}))})
_FREED: Final[Json] = {
    "freed_entries": COUNT,
    "freed_size_mb": AMOUNT,
    "freed_disk_mb": AMOUNT,
}
CLEARED: Final = exactly(
    {**_FREED, "models": many(exactly({"model": TEXT, **_FREED, "freed_tokens": COUNT}))}
)

_DURATION: Final = exactly(
    {"count": COUNT, **dict.fromkeys(("avg", "p50", "p95", "p99"), or_null(AMOUNT))}
)
_COUNTED: Final[Json] = {
    "requests_by_status": table_of(COUNT),
    **dict.fromkeys(
        (
            *("requests_total", "requests_refused", "requests_cancelled", "requests_failed"),
            *("prompt_tokens", "cached_tokens", "generated_tokens"),
        ),
        COUNT,
    ),
    **dict.fromkeys(("latency_s", "ttft_s", "inter_token_s"), _DURATION),
    "cache_hit_rate": or_null(SHARE),
}
_KV: Final = or_null(
    exactly(
        {
            f"{state}_{unit}": COUNT
            for state in ("live", "kept", "pinned", "offloaded", "disk", "allocated", "pool")
            for unit in ("tokens", "bytes")
        }
    )
)
METRICS: Final = exactly(
    {
        "uptime_s": AMOUNT,
        "window_s": COUNT,
        "requests_running": COUNT,
        "requests_per_second": AMOUNT,
        "tokens_per_second": AMOUNT,
        **_COUNTED,
        "batch_utilization": or_null(SHARE),
        "queue": COUNT,
        "worker_restarts": COUNT,
        "kv": _KV,
        "host_up": FLAG,
        "by_route": many(exactly({"route": TEXT, "model": TEXT, **_COUNTED})),
        "models": many(
            exactly(
                {
                    "model": TEXT,
                    "running": COUNT,
                    "waiting": COUNT,
                    "restarts": COUNT,
                    "batch_utilization": or_null(SHARE),
                    "kv": _KV,
                }
            )
        ),
    }
)
_STATE: Final[Json] = {"status": one("ok"), "version": TEXT}
HEALTH: Final = exactly({**_STATE, "backends": table_of(TEXT)})
NOT_READY: Final = exactly({**_STATE, "status": one("loading", "draining")})
"""`GET /health` with status 503."""

CAPABILITIES: Final = table_of(
    exactly(
        {
            "summary": TEXT,
            "streams": FLAG,
            "parameters": table_of(
                exactly(
                    {
                        "treatment": one("honoured", "without effect", "refused"),
                        "values": or_null(TEXT),
                        "default": or_null(TEXT),
                        "required": FLAG,
                        "help": TEXT,
                    }
                )
            ),
        }
    )
)
OPENAPI: Final = exactly({"openapi": TEXT, "info": OBJECT, "paths": OBJECT, "components": OBJECT})
