"""What a program declares, as records: families and tasks, and how keys and lines come from a task's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from selaras._app.declared.loaders import Absent
from selaras._cache.family import Family, Slot
from selaras._contracts.host import Mode
from selaras._core.cache.key import key_text
from selaras._core.cache.opening import Opening, open_names
from selaras._core.cache.parts import is_shortened
from selaras._core.cache.tagging import tag_text
from selaras._core.codec import Codec, codec_of
from selaras._core.errors import ConfigurationError
from selaras._core.jobs.retry import Policy
from selaras._core.positions import Scope
from selaras._core.routing import partition_of
from selaras._core.signature import Arguments, Layout, Signature, is_atomic

_SLOTS_MOST = 25_000
"""Places remembered by raw arguments, in each of two generations; more are worked out again. By one number or text that
is nothing the garbage collector looks at; by others, it is an eighth.
"""

_PLACES_MOST = 20_000
"""The same of a task, by those of its arguments that name them."""


class FamilySpec:
    """A declared family: its loader, its keys, and what the cache needs of it.

    Attributes:
        tag_names: of the tags its values can bear; None: a function of each value says which.
        is_method: it is called on an object. of_self: what of that is part of the key; None: nothing is.
        self_name: how that part is named for people.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        place: str,
        signature: Signature,
        *,
        is_method: bool = False,
        of_self: Callable[[Any], object] | None = None,
        self_name: str = "",
    ) -> None:
        self.name = name
        self.function = function
        self.place = place
        self.signature = signature
        self.is_method = is_method
        self._of_self = of_self
        self.self_name = self_name
        self.family: Family
        self.tag_names: frozenset[str] | None = frozenset()
        self._one = _Memo(_SLOTS_MOST)  # by the only argument, an int or a text
        self._many = _Memo(_SLOTS_MOST // 8)  # by arguments of any plain types
        self._partitions = 0

    def forget(self) -> None:
        """Forget the places remembered: they hold what the garbage collector does not see."""
        self._one, self._many = _Memo(self._one.most), _Memo(self._many.most)

    @property
    def remembered(self) -> int:
        """How many places are remembered."""
        return len(self._one) + len(self._many)

    def slot(self, args: tuple[Any, ...], kwargs: dict[str, Any], partitions: int) -> Slot:
        """Return the place of a call's value; every spelling of a call is one place."""
        if partitions != self._partitions:
            self.forget()
            self._partitions = partitions
        known: Any = None
        memo = self._one
        if not kwargs:
            if len(args) == 1 and (args[0].__class__ is int or args[0].__class__ is str):
                known = args[0]
            else:
                # 1, True and 1.0 are equal and may be different places, so their types belong to what is remembered;
                # of what has parts, such as (1,) and (True,), nothing is.
                known = (*args, *map(type, args))
                memo = self._many
            try:
                slot = memo.young.get(known)
            except TypeError:
                known = slot = None
            if slot is not None:
                return slot
            if known is not None and (slot := memo.old.pop(known, None)) is not None:
                return memo.keep(known, slot)
        arguments = self.signature.bind(args, kwargs)
        parts = self.signature.key_parts(arguments)
        if self._of_self is not None:
            parts = self.signature.with_part(self._of_self(arguments.values[0]), parts)
        slot = self._place(parts, arguments, partitions)
        if known is not None and is_atomic(args) and not is_shortened(parts):
            memo.keep(known, slot)
        return slot

    @property
    def has_self_part(self) -> bool:
        """Whether something of a method's object is part of the key."""
        return self._of_self is not None

    def slot_without_object(self, part: object, args: tuple[Any, ...], kwargs: dict[str, Any], partitions: int) -> Slot:
        """Return the place of a method's value from what of its object is part of the key (if anything is): it can be read
        and voided, and not loaded.
        """
        arguments = self.signature.bind((Absent(self.name), *args), kwargs)
        parts = self.signature.key_parts(arguments)
        if self._of_self is not None:
            parts = self.signature.with_part(part, parts)
        return self._place(parts, arguments, partitions)

    def _place(self, parts: str, arguments: Arguments, partitions: int) -> Slot:
        key = key_text(self.name, parts)
        return Slot(self.family, key, partition_of(key, partitions), arguments)


class _Memo:
    """Places by what names them, of late: two generations, and one that is freed step by step, since all at once would take
    long.
    """

    __slots__ = ("_gone", "most", "old", "young")

    def __init__(self, most: int) -> None:
        self.most = most
        self.young: dict[Any, Slot] = {}
        self.old: dict[Any, Slot] = {}
        self._gone: dict[Any, Slot] = {}

    def __len__(self) -> int:
        return len(self.young) + len(self.old) + len(self._gone)

    def keep(self, known: Any, slot: Slot) -> Slot:
        """Remember a place."""
        young = self.young
        young[known] = slot
        if self._gone:
            self._gone.popitem()
        if len(young) >= self.most:
            self._gone, self.old, self.young = self.old, young, {}
        return slot


class KeyPlan(Struct, frozen=True):
    """How a key of a family comes from a task's arguments: (family parameter, task parameter), in order.

    `by_position`: the family takes these, and nothing before them, by position: then places are remembered.
    """

    family: FamilySpec
    names: tuple[tuple[str, str], ...]
    by_position: bool = False

    def slot(self, named: Mapping[str, Any], partitions: int) -> Slot:
        """Return the place that these arguments name."""
        if self.by_position:
            return self.family.slot(tuple([named[theirs] for _, theirs in self.names]), {}, partitions)
        return self.family.slot((), {ours: named[theirs] for ours, theirs in self.names}, partitions)

    def parameters(self) -> frozenset[str]:
        """Return the task parameters it needs."""
        return frozenset(theirs for _, theirs in self.names)


class OpenPlan(Struct, frozen=True):
    """Many values that a task writes at once: of a family, or of a tag, whose value may be a parameter of the task."""

    scope: Scope
    name: str
    parameter: str = ""

    def opens(self, named: Mapping[str, Any]) -> Opening:
        """Return what these arguments name."""
        return self.scope, tag_text(self.name, named[self.parameter]) if self.parameter else self.name

    def shown(self) -> str:
        """Return its name for people."""
        return f"all of {self.name}" if self.scope is Scope.FAMILY else f"tag {self.name}"


class LinePlan(Struct, frozen=True):
    """How a line comes from a task's arguments: a text with `{parameter}` in it, or the key that is written."""

    text: str = ""
    key: KeyPlan | None = None
    needs: frozenset[str] = frozenset()

    def line(self, named: Mapping[str, Any], partitions: int) -> str:
        """Return the line's name. Raises ConfigurationError: the text cannot be filled in from these arguments."""
        if self.key is not None:
            return self.key.slot(named, partitions).key
        try:
            return self.text.format_map(named)
        except Exception as error:
            raise ConfigurationError(
                f"lock={self.text!r} cannot be filled in from the arguments: {type(error).__name__}: {error}"
            ) from error


class Places(Struct, frozen=True):
    """What the arguments of one job name.

    Attributes:
        reads: (name, place) of each `Read` parameter.
        warms: those and the places its body will read, without what it writes: that is never in a tier.
        written: places under its intents, and those that it invalidates at the end, by key.
    """

    reads: tuple[tuple[str, Slot], ...]
    warms: tuple[Slot, ...]
    written: dict[str, Slot]


NO_PLACES: Final = Places((), (), {})


class TaskSpec:
    """A declared task.

    Attributes:
        signature: of what callers give: without `Read` parameters.
        writes: keys under intents. opens: tags and families under intents. serves: keys that are invalidated at the end instead. reads: warmed before.
        read_parameters: (name, key) of each `Read` parameter.
        wants_preimage: a `Read` parameter is of a family it writes.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        place: str,
        *,
        signature: Signature,
        mode: Mode,
        policy: Policy,
        queue: str,
        priority: int,
        expires_us: int,
        writes: Sequence[KeyPlan],
        reads: Sequence[KeyPlan],
        read_parameters: Sequence[tuple[str, KeyPlan]],
        line: LinePlan | None,
        opens: Sequence[OpenPlan] = (),
    ) -> None:
        self.name = name
        self.function = function
        self.place = place
        self.signature = signature
        self.mode = mode
        self.policy = policy
        self.queue = queue
        self.priority = priority
        self.expires_us = expires_us
        self.writes = tuple(plan for plan in writes if plan.family.family.during_write == "load")
        self.serves = tuple(plan for plan in writes if plan.family.family.during_write == "serve")
        self.opens = tuple(opens)
        self.reads = tuple(reads)
        self.read_parameters = tuple(read_parameters)
        self.line = line
        written = {plan.family.name for plan in self.writes}
        self.wants_preimage = any(plan.family.name in written for _, plan in read_parameters)
        self.names_places = bool(writes or line or opens)
        self.reads_first = bool(reads or read_parameters)
        self._naming = frozenset[str]().union(
            *(plan.parameters() for plan in (*writes, *reads, *(plan for _, plan in read_parameters)))
        )
        self._named_by: tuple[Layout | None, tuple[int, ...]] = (None, ())
        self._places: dict[Any, Places] = {}
        self._partitions = 0
        self._result: Codec | None = None
        self._rest: Signature | None = None

    def forget(self) -> None:
        """Forget the places remembered; see `FamilySpec.forget`."""
        self._places = {}

    def places(self, arguments: Arguments, partitions: int) -> Places:
        """Return the places that a call's arguments name; jobs of the same ones share them."""
        layout, naming = self._named_by
        if arguments.layout is not layout or partitions != self._partitions:
            layout = arguments.layout
            naming = tuple(place for place, name in enumerate(layout.names) if name in self._naming)
            self._named_by, self._places, self._partitions = (layout, naming), {}, partitions
        values = arguments.values
        if len(naming) == 1:
            value = values[naming[0]]
            known: Any = (value, value.__class__)
        else:
            some = [values[place] for place in naming]
            known = (*some, *map(type, some))  # as in `FamilySpec.slot`
        try:
            places = self._places.get(known)
        except TypeError:
            return self._places_of(arguments, partitions)
        if places is None:
            places = self._places_of(arguments, partitions)
            if is_atomic(tuple([values[place] for place in naming])):
                if len(self._places) >= _PLACES_MOST:
                    self._places.clear()
                self._places[known] = places
        return places

    def _places_of(self, arguments: Arguments, partitions: int) -> Places:
        named = arguments.named()
        reads = tuple((name, plan.slot(named, partitions)) for name, plan in self.read_parameters)
        written = {slot.key: slot for plan in (*self.writes, *self.serves) for slot in (plan.slot(named, partitions),)}
        warms = (*(slot for _, slot in reads), *(plan.slot(named, partitions) for plan in self.reads))
        return Places(reads, tuple(slot for slot in warms if slot.key not in written), written)

    def opened(self, named: Mapping[str, Any], partitions: int) -> tuple[str, ...]:
        """Return the names under which it opens tags and families, those of all partitions."""
        return tuple([name for plan in self.opens for name in open_names(*plan.opens(named), partitions)])

    def written(self) -> list[str]:
        """Return the names of what it writes, for people."""
        return [*(plan.family.name for plan in (*self.writes, *self.serves)), *(plan.shown() for plan in self.opens)]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Check and coerce a call's arguments."""
        return self.signature.bind(args, kwargs)

    @property
    def rest(self) -> Signature:
        """The signature of a call whose first argument comes from the step before."""
        if self._rest is None:
            self._rest = self.signature.without_first()
        return self._rest

    @property
    def first(self) -> Codec:
        """The codec of its first parameter: what it gets of the step before."""
        return codec_of(self.signature.annotations[self.signature.parameters[0]])

    @property
    def result(self) -> Codec:
        """The codec of what it returns; made when the first job ends or is waited for, when all names are defined."""
        if self._result is None:
            self._result = codec_of(self.signature.returns)
        return self._result

    def needed_parameters(self) -> frozenset[str]:
        """Return the parameters that must be known when it is enqueued: those of its keys and its line."""
        needed = set[str](self.line.needs if self.line else ())
        for plan in (*self.writes, *self.serves):
            needed |= plan.parameters()
        needed.update(plan.parameter for plan in self.opens if plan.parameter)
        return frozenset(needed)
