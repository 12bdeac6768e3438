"""What can go wrong with a pipeline. An error that may pass by itself is `retriable`; the others need a person."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.pipelines.model import Place


class PipelineError(Exception):
    """The message names the thing, the value and the way out."""

    retriable = False


class Misconfigured(PipelineError):
    """What the pipeline, or the command, was told cannot be; another try does not mend it."""


class NotInstalled(Misconfigured):
    """A package is missing that is needed for what was asked."""


class SpecError(Misconfigured):
    """A pipeline's file is wrong. All that was found is told at once, each with its line."""

    def __init__(self, findings: "Sequence[Finding]") -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = tuple(findings)


class Unreadable(SpecError):
    """There is no pipeline's file to find anything in."""


class Finding:
    """One thing that is wrong, and where."""

    __slots__ = ("place", "text")

    def __init__(self, place: "Place | None", text: str) -> None:
        self.place = place
        self.text = text

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text

    def __repr__(self) -> str:
        return f"Finding({self})"


class Missing(Finding):
    """What is wrong is not the pipeline: a package it needs is not installed here."""

    __slots__ = ()


class SinkError(PipelineError):
    """A sink refuses rows or cannot take them as they are: another schema, a constraint, a mark that is ahead."""


class SinkUnavailable(SinkError):
    """A sink cannot be reached, or has no room now; what was asked may be asked again."""

    retriable = True


class ExpectationFailed(PipelineError):
    """Rows break an expectation whose action is `fail`; nothing of their micro-batch was written."""


class Changed(PipelineError):
    """The steps are not those that the pipeline's state was made by."""


class Busy(PipelineError):
    """Somebody else runs the pipeline."""
