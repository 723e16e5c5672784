"""What a federation's numbers stand for: the names of its devices and classes, and how its columns were encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from fedbc.data.encoding import Encoding
from fedbc.errors import InputError, unknown


@dataclass(frozen=True)
class Meaning:
    """Stays with a result, so that it can be read, and asked, without the data."""

    device_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    encoding: Encoding | None = None

    def __bool__(self) -> bool:
        return bool(self.device_names or self.class_names or self.encoding)

    def device_label(self, device: int) -> Any:
        """A device's name, or its number if it has none."""
        return self.device_names[device] if self.device_names else device

    def device_number(self, device: Any, count: int) -> int:
        """The number of a device that is called by its name or its number."""
        if isinstance(device, str):
            if device not in self.device_names:
                raise unknown("device", device, self.device_names or ["(numbers only)"])
            return self.device_names.index(device)
        is_number = isinstance(device, Real) and not isinstance(device, bool)  # NaN is one, but within no bounds
        if not is_number or not 0 <= device < count or int(device) != device:
            raise InputError(f"device={device!r} is not accepted: give a name, or a number from 0 to {count - 1}")
        return int(device)

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        encoding = self.encoding.to_plain() if self.encoding is not None else None
        return {"device_names": self.device_names, "class_names": self.class_names, "encoding": encoding}

    @classmethod
    def from_plain(cls, table: Mapping[str, Any]) -> Meaning:
        """What `to_plain` gave."""
        encoding = Encoding.from_plain(table["encoding"]) if table["encoding"] is not None else None
        return cls(tuple(table["device_names"]), tuple(table["class_names"]), encoding)
