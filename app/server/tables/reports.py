"""JSON schemas of the 200 responses about the server and its models."""

from __future__ import annotations

from typing import Final

from hearth.app.server.schema import Json
from hearth.app.server.tables.answers import (
    AMOUNT,
    COUNT,
    FLAG,
    OBJECT,
    SHARE,
    TEXT,
    exactly,
    many,
    one,
    or_null,
    table_of,
)

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
_HELD: Final[Json] = {
    "total_entries": COUNT,
    "total_size_mb": AMOUNT,
    "hit_rate": or_null(SHARE),
    "tiers": exactly(dict.fromkeys(("live", "kept", "pinned", "shelved"), _TIER)),
}
CACHE_STATS: Final = exactly({**_HELD, "models": many(exactly({"model": TEXT, **_HELD}))})
_FREED: Final[Json] = {"freed_entries": COUNT, "freed_size_mb": AMOUNT}
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
            for state in ("live", "kept", "pinned", "shelved", "allocated", "pool")
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
