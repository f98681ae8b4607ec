"""Errors written for the person who meets them: what happened, to which object, what to do next."""

from __future__ import annotations

from typing import Any


class WalkbackError(Exception):
    """Base of every error walkback raises on purpose; the command line shows it without a traceback."""

    kind = "bad_input"
    exit_code = 2
    message = hint = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross between processes; one of another package may be made of other arguments."""
        return _restored, (type(self), self.message or super().__str__(), self.hint)

    def to_dict(self) -> dict[str, str]:
        return {"kind": self.kind, "message": self.message, "hint": self.hint}


def _restored(kind: type[WalkbackError], message: str, hint: str) -> WalkbackError:
    error = kind.__new__(kind, message)
    WalkbackError.__init__(error, message, hint)
    return error


class BadInput(WalkbackError):
    """The caller's data, option or model cannot be used as given."""


class FileTrouble(WalkbackError):
    """What the system said of a file: not there, not allowed, or no room left."""

    kind = "file"

    @classmethod
    def told(cls, error: OSError) -> FileTrouble:
        where = f": {error.filename}" if error.filename else ""
        return cls(f"{error.strerror or error}{where}.")


class UnknownName(WalkbackError):
    """A rule, net, data set or other registered thing that does not exist."""

    kind = "unknown_name"


class NotApplicable(WalkbackError):
    """A rule or measure that is well defined, but not for this net."""

    kind = "not_applicable"


class CorruptBundle(WalkbackError):
    """A bundle whose bytes are not the bytes that were written."""

    kind = "corrupt_bundle"


class NewerSchema(WalkbackError):
    """A bundle written by a later walkback than this one."""

    kind = "newer_schema"


class UnsafePath(WalkbackError):
    """A member name that would leave the folder it belongs to."""

    kind = "unsafe_path"


class StoreBusy(WalkbackError):
    """A run that another process is training at this moment."""

    kind = "store_busy"
