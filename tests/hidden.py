"""Processes in which some libraries cannot be imported, as if they were not installed."""

import os

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
"""


def environment(folder, names):
    """The environment of a process that lacks these, and its children's; `folder` is made for it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT.format(names=set(names)))
    return os.environ | {"PYTHONPATH": str(folder)}
