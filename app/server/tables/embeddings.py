"""`POST /v1/embeddings` and `POST /v1/rerank`."""

from __future__ import annotations

from typing import Final, get_args

from hearth.app.server.parameters import Table, honoured
from hearth.app.server.schema import AnyOf, Flag, ListOf, Number, OneOf, Text
from hearth.app.server.tables import common
from hearth.app.server.tables.completions import TOKENS
from hearth.backends.contract import Pooling
from hearth.backends.engine.validate import MOST_TEXTS

INPUT: Final = AnyOf((Text(1), TOKENS, ListOf(AnyOf((Text(1), TOKENS)), MOST_TEXTS, 1)))
"""A string, token ids, or an array of either."""

EMBEDDINGS: Final = Table(
    "CreateEmbedding",
    (
        common.MODEL,
        honoured("input", INPUT, "text or token ids, or an array of either", required=True),
        honoured("encoding_format", OneOf(("float", "base64")), "format of the vectors", "float"),
        honoured(
            "dimensions",
            Number(1, 65_536, whole=True),
            "keep the first numbers of each vector, this many, and normalize it; for models that "
            "were trained for it",
            "all",
        ),
        honoured(
            "pooling",
            OneOf(get_args(Pooling)),
            "how the vectors of the tokens are combined",
            "model: as the model was trained, or mean if that is unknown",
        ),
        common.KEEP_ALIVE,
        common.USER,
    ),
)

_DOCUMENT: Final = Table("Document", (honoured("text", Text(1), "its text", required=True),))
RERANK: Final = Table(
    "Rerank",
    (
        common.MODEL,
        honoured("query", Text(1), "the query", required=True),
        honoured(
            "documents",
            ListOf(AnyOf((Text(1), _DOCUMENT)), MOST_TEXTS, 1),
            "the texts to rank",
            required=True,
        ),
        honoured("top_n", Number(1, MOST_TEXTS, whole=True), "return this many of the best", "all"),
        honoured("return_documents", Flag(), "also return the texts", "false"),
        common.KEEP_ALIVE,
        common.USER,
    ),
)
