"""Image references: REPOSITORY[:TAG][@DIGEST], and the short names that people use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class ImageReference:
    """tag, digest: "" if missing. A digest has precedence over a tag."""

    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        rest, _, digest = text.partition("@")
        head, slash, last = rest.rpartition("/")
        last, _, tag = last.partition(":")
        return cls(f"{head}{slash}{last}", tag, digest)

    @property
    def host(self) -> str:
        """The registry's address in the reference."""
        return self.repository.partition("/")[0]

    @property
    def path(self) -> str:
        """The repository in its registry."""
        return self.repository.partition("/")[2]

    @property
    def name(self) -> str:
        """The short name: the last part, with the tag if there is no digest."""
        last = self.repository.rpartition("/")[2]
        return f"{last}:{self.tag}" if self.tag and not self.digest else last

    def at(self, digest: str) -> str:
        """Return the reference by digest."""
        return f"{self.repository}@{digest}"
