"""Tags: a name that many cached values bear, so that all of them can be voided at once."""

from __future__ import annotations

import logging
from urllib.parse import unquote

from selaras._app.process.portal import wait_for
from selaras._app.process.program import Program
from selaras._app.values.writing import BlockingWriting, Writing
from selaras._core.positions import Scope

_log = logging.getLogger("selaras")


class Tag:
    """A tag: made by `app.tag("category", 7)`, borne by the values of a family that says `tags=`."""

    __slots__ = ("_program", "name")

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self._program = program

    @property
    def sync(self) -> BlockingTag:
        """The twin of which every call blocks."""
        return BlockingTag(self)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<tag {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tag) and other.name == self.name

    def __hash__(self) -> int:
        return hash(("tag", self.name))

    async def invalidate(self) -> None:
        """Void every value that bears this tag: now, and inside a job or scope again when that succeeds."""
        doubt_tag(self._program, self.name)
        process = self._program.process()
        await process.open()
        await process.cache.invalidate(tags=[self.name])

    def writing(self) -> Writing:
        """Write many values at once, outside of a task's declaration: `async with tag.writing(): ...` around the
        transaction. Until its end nothing that bears the tag is stored.
        """
        doubt_tag(self._program, self.name)
        return Writing(self._program, opens=[(Scope.TAG, self.name)])


class TagBinding:
    """A tag whose value comes from a parameter of a task: `writes=app.tag("category", by="id")`."""

    __slots__ = ("by", "name")

    def __init__(self, name: str, by: str) -> None:
        self.name = name
        self.by = by

    def __repr__(self) -> str:
        return f"tag({self.name!r}, by={self.by!r})"


def name_of_tag(text: str) -> str:
    """Return the name of a tag without its value."""
    return unquote(text.partition(":")[0])


def doubt_tag(program: Program, text: str) -> None:
    """Say once that no family here bears such a tag: mostly its name is mistyped."""
    name = name_of_tag(text)
    if name in program.doubted_tags or program.registry.may_bear(name):
        return
    program.doubted_tags.add(name)
    borne = sorted({known for family in program.registry.families.values() for known in family.tag_names or ()})
    _log.warning(
        "no family of this program says tags=%r, so its values are not voided by that tag; tags there are: %s",
        name,
        ", ".join(borne) or "none",
    )


class BlockingTag:
    """A tag: made by `app.tag("category", 7)`, borne by the values of a family that says `tags=`."""

    __slots__ = ("aio",)

    def __init__(self, aio: Tag) -> None:
        self.aio = aio

    @property
    def name(self) -> str:
        """Its text: `category:7`."""
        return self.aio.name

    def __str__(self) -> str:
        return str(self.aio)

    def __repr__(self) -> str:
        return repr(self.aio)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockingTag) and other.aio == self.aio

    def __hash__(self) -> int:
        return hash(self.aio)

    def invalidate(self) -> None:
        """Void every value that bears this tag."""
        wait_for(self.aio.invalidate)

    def writing(self) -> BlockingWriting:
        """Write many values at once, outside of a task's declaration: `with tag.writing(): ...` around the transaction."""
        return BlockingWriting(self.aio.writing())
