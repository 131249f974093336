"""Arguments, results and errors of a job, for people: through the app's own types where it is at hand."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from selaras._app.app import Selaras
from selaras._core.codec import CorruptBytes
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.job import JobRecord
from selaras._core.signature import Unbindable
from selaras.cli.output import short

_MESSAGE_MOST: Final = 300
