"""What can go wrong, as one family.

Every error a user meets is a `PhobosError` whose text is one plain sentence that says what to do. The command
line prints it and exits with `exit_code`; the HTTP layer maps `RequestError` and `UnavailableError` to a status
and an envelope. Anything else that escapes is a defect: it is logged and masked.

Sentences quote files and clients, so what cannot be printed is replaced here, wherever they will be shown.
"""

from phobos.printable import printable

NO_TEXT = (
    "the loaded model is an embedding model and cannot generate text: use /v1/embeddings, or load a generative model"
)
NO_EMBEDDINGS = "the loaded model is not an embedding model: load one whose file names a pooling_type"


class PhobosError(Exception):
    """Base of all errors with a sentence for the user."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.splitlines())))


class UsageError(PhobosError):
    """The command line or a setting is wrong."""

    exit_code = 2


class FileError(PhobosError):
    """A model file is missing, damaged or not what it says."""


class ModelNotHereError(FileError):
    """A model that is known by `name` and could be fetched, but is not on this machine."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not on this machine: run `phobos-cli pull {name}`")
        self.name = name


class UnsupportedModelError(PhobosError):
    """The file is sound, but Phobos cannot run this model; the text names what is missing."""


class DownloadError(PhobosError):
    """A model could not be fetched."""


class RequestError(PhobosError):
    """A request that is refused as the client wrote it.

    `code` and `param` go into the error envelope; `status` is the HTTP status; `details` are further envelope
    fields (`n_prompt_tokens`, `n_ctx`).
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_value",
        param: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        details: dict[str, int | str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.status = status
        self.kind = kind
        self.details = details or {}


class ContextLengthError(RequestError):
    """The prompt does not fit the context."""

    def __init__(self, n_prompt_tokens: int, n_ctx: int, *, at_least: bool = False) -> None:
        how_many = f"at least {n_prompt_tokens}" if at_least else str(n_prompt_tokens)
        super().__init__(
            f"the prompt has {how_many} tokens and the context holds {n_ctx}: shorten it or raise --ctx-size",
            code="context_length_exceeded",
            param="messages",
            kind="exceed_context_size_error",
            details={"n_prompt_tokens": n_prompt_tokens, "n_ctx": n_ctx},
        )


class QueueFullError(RequestError):
    """The queue is full or the wait in it was too long."""

    def __init__(self, message: str, *, code: str = "queue_full", retry_after_s: int = 5) -> None:
        super().__init__(message, code=code, status=429, kind="rate_limit_error")
        self.retry_after_s = retry_after_s


class UnavailableError(PhobosError):
    """The engine cannot answer: loading failed, it died, or it is shutting down."""
