"""Errors of models that another machine serves."""

from __future__ import annotations

from hearth.backends.errors import HearthError


class RemoteError(HearthError):
    """Base of errors of the network or the server; `remote` in `data` is the name of the model."""

    code = "remote_error"
    exit_code = 5
    http_status = 502


class RemoteOffline(RemoteError):
    """The server is not on this machine, and Hearth is in offline mode."""

    code = "remote_offline"
    http_status = 503


class RemoteUnreachable(RemoteError):
    """No connection: no server is listening, the name is unknown, or there is no route."""

    code = "remote_unreachable"
    http_status = 503


class RemoteUntrusted(RemoteError):
    """The TLS handshake failed: a certificate that is not trusted, or no TLS at all."""

    code = "remote_untrusted"


class RemoteTimeout(RemoteError):
    """The server did not accept the connection, or sent nothing, for too long."""

    code = "remote_timeout"
    http_status = 504


class RemoteCut(RemoteError):
    """The connection or stream ended before the answer; text sent before remains valid."""

    code = "remote_cut"


class RemoteInterrupted(RemoteError):
    """The generation was ended on the server's side."""

    code = "remote_interrupted"
    http_status = 503


class RemoteDenied(RemoteError):
    """The server requires a key, or another one than was sent."""

    code = "remote_denied"


class RemoteKeyMissing(RemoteError):
    """The key cannot be read from the place that the settings name."""

    code = "remote_key_missing"
    exit_code = 2
    http_status = 503


class RemoteModelMissing(RemoteError):
    """The server has no model of that name, or several and none was chosen."""

    code = "remote_model_missing"


class RemoteMalformed(RemoteError):
    """The answer is not that of an OpenAI-style server."""

    code = "remote_malformed"


class RemoteFailed(RemoteError):
    """The server reports a failure, or refuses the request for another reason."""

    code = "remote_failed"
