"""What can go wrong with a model that another machine serves."""

from __future__ import annotations

from hearth.backends.errors import HearthError


class RemoteError(HearthError):
    """Base of what the network or the other end did; `remote` in `data` names the model."""

    code = "remote_error"
    exit_code = 5
    http_status = 502


class RemoteOffline(RemoteError):
    """The other end is not on this machine, and Hearth is offline."""

    code = "remote_offline"
    http_status = 503


class RemoteUnreachable(RemoteError):
    """No connection: nobody listens there, the name is unknown, or there is no route."""

    code = "remote_unreachable"
    http_status = 503


class RemoteUntrusted(RemoteError):
    """The TLS handshake failed: a certificate that is not trusted, or no TLS at all."""

    code = "remote_untrusted"


class RemoteTimeout(RemoteError):
    """The other end did not take the connection, or was silent, for too long."""

    code = "remote_timeout"
    http_status = 504


class RemoteCut(RemoteError):
    """The connection or the stream ended before the answer did; what came before it stands."""

    code = "remote_cut"


class RemoteInterrupted(RemoteError):
    """Somebody at the other end ended the generation."""

    code = "remote_interrupted"
    http_status = 503


class RemoteDenied(RemoteError):
    """The other end wants another key, or any."""

    code = "remote_denied"


class RemoteKeyMissing(RemoteError):
    """The key cannot be found where the settings say it is."""

    code = "remote_key_missing"
    exit_code = 2
    http_status = 503


class RemoteModelMissing(RemoteError):
    """The other end has no model of that name, or several and none was chosen."""

    code = "remote_model_missing"


class RemoteMalformed(RemoteError):
    """What came back is not what an OpenAI-style server says."""

    code = "remote_malformed"


class RemoteFailed(RemoteError):
    """The other end says that it failed, or refuses for a reason of its own."""

    code = "remote_failed"
