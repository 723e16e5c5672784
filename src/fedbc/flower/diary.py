"""What a device's node keeps of itself beside its state."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbc import storage
from fedbc.errors import InputError

__all__ = ["Diary"]


@dataclass
class Diary:
    """A small file in which a node tells what it is about, for itself after a kill and for `fedbc deploy doctor`."""

    file: Path
    facts: dict[str, Any] = field(default_factory=dict)
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self.file.read_text())
            self.facts = found if isinstance(found, dict) else {}

    def note(self, **facts: Any) -> None:
        """Keep facts; those that are None are dropped."""
        with self._writing:  # the heartbeat's thread writes, too, and shall not put back what was before
            self.facts = {k: v for k, v in (self.facts | facts | {"at": time.time()}).items() if v is not None}
            with contextlib.suppress(InputError):  # a full disk is no reason to stop
                storage.write_atomically(self.file, json.dumps(self.facts), private=True)
