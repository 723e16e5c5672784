"""What a run is: its specification and identity, executing it, its folder, lines of results, a pool of workers."""

from fedbc.runs.catalog import CATALOG, Entry, Option, argument_help, entry
from fedbc.runs.deployed import SUMS_ONLY, has_sums_only
from fedbc.runs.execute import begin, execute, execute_in
from fedbc.runs.in_folders import ENDING, How, reserved_folder, resume, run, run_methods, usual_folder
from fedbc.runs.lines import Line, Lines, State, is_result, state_of
from fedbc.runs.listing import CURVES, delete, list_runs
from fedbc.runs.loading import load
from fedbc.runs.many import Sweep, flatten, read_sweep, run_missing, sweep
from fedbc.runs.methods import MethodRuns
from fedbc.runs.outcome import CallEachRound, Observer, Outcome
from fedbc.runs.own import OWN, load_model
from fedbc.runs.pool import Job, check_workers, do_jobs, need_ray, tell_round
from fedbc.runs.spec import RUN_OPTIONS, USUAL_MODEL, RunSpec, identity, read_toml, what_counts
from fedbc.simulation.result import RunFolder
from fedbc.simulation.telling import data_name

__all__ = [
    "CATALOG",
    "CURVES",
    "ENDING",
    "OWN",
    "RUN_OPTIONS",
    "SUMS_ONLY",
    "USUAL_MODEL",
    "CallEachRound",
    "Entry",
    "How",
    "Job",
    "Line",
    "Lines",
    "MethodRuns",
    "Observer",
    "Option",
    "Outcome",
    "RunFolder",
    "RunSpec",
    "State",
    "Sweep",
    "argument_help",
    "begin",
    "check_workers",
    "data_name",
    "delete",
    "do_jobs",
    "entry",
    "execute",
    "execute_in",
    "flatten",
    "has_sums_only",
    "identity",
    "is_result",
    "list_runs",
    "load",
    "load_model",
    "need_ray",
    "read_sweep",
    "read_toml",
    "reserved_folder",
    "resume",
    "run",
    "run_methods",
    "run_missing",
    "state_of",
    "sweep",
    "tell_round",
    "usual_folder",
    "what_counts",
]
