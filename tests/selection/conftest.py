"""Shared by the tests of calibration and tuning: commands, and test sets that are broken."""

import dataclasses

import pytest

from fedbc.cli import main
from fedbc.data.federation import Split
from fedbc.runs import CATALOG


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command to its end, its workers in processes of their own: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        return stop.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def break_test_sets(monkeypatch):
    """From here on the synthetic federation has wrong labels in its test sets, and only there."""

    def apply():
        entry = CATALOG["data"]["synthetic"]

        def broken(**arguments):
            whole = entry.build(**arguments)
            wrong = (whole.test.y + 1) % whole.classes
            return dataclasses.replace(whole, test=Split(whole.test.x, wrong, whole.test.offsets))

        monkeypatch.setitem(CATALOG["data"], "synthetic", dataclasses.replace(entry, build=broken))

    return apply
