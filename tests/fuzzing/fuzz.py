"""Fuzzing of public functions: a call succeeds with numbers, or is refused by name.

A member's tests hold a table of ``Target``; each is called with good arguments of which none, one
or two are replaced by what callers pass by mistake. Allowed are

- a result that is finite and whose variances are not negative; NaN and infinity are let pass where
  the documentation says so, and where an argument is beyond 1e6 or below 1e-6;
- a ``ValueError`` or ``TypeError`` that names an argument; of ``CholeskyError`` this is asked only
  where all arguments are moderate;
- torch's error where a size of 10⁶ asks for more memory than there is.

Everything else is a finding: other errors, foreign warnings, NaN, negative variances.

``python -m fuzzing.fuzz --calls 50000 shared packages/*`` fuzzes members at length.
"""

import argparse
import dataclasses
import fnmatch
import importlib.util
import inspect
import math
import re
import sys
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import jaxtyping
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from fuzzing.arguments import Draw, hostile, show
from probseq.errors import CholeskyError

__all__ = [
    "Finding",
    "FuzzSuite",
    "Report",
    "Target",
    "fuzz",
    "public_callables",
    "uncovered",
    "undocumented",
]

_REFUSALS = (ValueError, TypeError)
_MODERATE = 1e6

# Calls after which a target that has only refused is at fault.
_MANY = 20


@dataclasses.dataclass(frozen=True)
class Target:
    """A public function, constructor or method, and strategies of its good arguments.

    Attributes:
        call: the function, or a wrapper of it by ``functools.wraps``.
        arguments: by name; ``self`` is never replaced by something hostile.
        non_finite: words of its documentation that say when a result isn't finite.
    """

    call: Callable[..., Any]
    arguments: Mapping[str, SearchStrategy[Any]]
    non_finite: str = ""

    def __str__(self) -> str:
        return self.call.__qualname__


@dataclasses.dataclass
class Finding:
    """An outcome that is not allowed.

    Attributes:
        summary: the outcome and its place.
        count: in how many calls.
        example: the shortest of these calls.
    """

    summary: str
    count: int
    example: str


@dataclasses.dataclass
class Report:
    """Outcomes of calls by kind, and findings by the line that raised them."""

    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    findings: dict[str, Finding] = dataclasses.field(default_factory=dict)

    @property
    def calls(self) -> int:
        """Number of calls."""
        return self.outcomes.total()

    def add(self, other: "Report") -> None:
        """Add the calls of another report."""
        self.outcomes += other.outcomes
        for key, finding in other.findings.items():
            self._add_finding(key, finding)

    def _add_finding(self, key: str, finding: Finding) -> None:
        known = self.findings.setdefault(key, dataclasses.replace(finding, count=0))
        known.count += finding.count
        if len(finding.example) < len(known.example):
            known.summary, known.example = finding.summary, finding.example

    def __str__(self) -> str:
        findings = sorted(self.findings.values(), key=lambda finding: -finding.count)
        return "\n".join(f"{f.count} times: {f.summary}\n    {f.example}" for f in findings)


def fuzz(target: Target, calls: int) -> Report:
    """Call a target up to ``calls`` times; the same calls on every run."""
    report = Report()

    @settings(
        max_examples=calls,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(_calls(target))
    def run(arguments: dict[str, Any]) -> None:
        kind, finding = _outcome(target, arguments)
        report.outcomes[kind] += 1
        if finding is not None:
            shown = ", ".join(f"{name}={show(value)}" for name, value in arguments.items())
            example = f"{target}({shown.removeprefix('self=')})"
            report.add(Report(findings={finding[0]: Finding(finding[1], 1, example)}))

    # Shape annotations are checked in tests only: here calls are made as users make them.
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        run()
    except Exception as error:
        error.add_note(f"while {target} was fuzzed: its good arguments don't agree")
        raise
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
    # A third of the calls has good arguments only: of many, some succeed.
    some = report.calls >= _MANY
    if some and not {"success", "documented", "finding"} & report.outcomes.keys():
        never = Finding(f"{target} refuses whatever it is given", report.calls, str(target))
        report.add(Report(findings={f"refuses {target}": never}))
    return report


@st.composite
def _calls(draw: Draw, target: Target) -> dict[str, Any]:
    arguments = {name: draw(strategy) for name, strategy in target.arguments.items()}
    names = [name for name in arguments if name != "self"]
    if names:
        for name in draw(st.lists(st.sampled_from(names), max_size=2, unique=True)):
            arguments[name] = draw(hostile(arguments[name]))
    return arguments


# -- Outcomes ---------------------------------------------------------------------------------


def _outcome(target: Target, arguments: dict[str, Any]) -> tuple[str, tuple[str, str] | None]:
    """Call once; return the kind of outcome and, if it's a finding, its key and summary."""
    torch.default_generator.manual_seed(0)  # manual_seed formats stacks for absent devices
    largest = max((_magnitude(v) for name, v in arguments.items() if name != "self"), default=0)
    names = _names(target, arguments)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = target.call(**arguments)
    except Exception as error:
        kind, line = type(error).__name__, str(error).strip().partition("\n")[0]
        if "can't allocate memory" in line:
            return "memory", None
        refusal = isinstance(error, _REFUSALS)
        if refusal and names & set(re.findall(r"\w+", str(error))):
            return kind, None
        # Deep inside, what overflows is no argument any more but the matrix that it has made.
        if isinstance(error, CholeskyError) and largest > _MODERATE:
            return kind, None
        fault = f"{kind} that names no argument" if refusal else kind
        place = _place(error)
        return "finding", (f"{kind} {place}", f"{fault} at {place}: {line[:200]}")
    for warning in caught:
        if not _is_ours(sys.modules[warning.category.__module__].__dict__.get("__file__") or "<"):
            kind, line = warning.category.__name__, str(warning.message).partition("\n")[0]
            place = f"{Path(warning.filename).name}:{warning.lineno}"
            return "finding", (f"{kind} {place}", f"{kind} at {place}: {line[:200]}")
    numbers = list(_numbers(str(target), result))
    if any(bool((_variances(name, values) < 0).any()) for name, values in numbers):
        return "finding", (f"negative variance {target}", f"negative variance from {target}")
    if all(bool(np.isfinite(values).all()) for _, values in numbers):
        return "success", None
    if target.non_finite:
        return "documented", None
    if not math.isfinite(largest):
        return "finding", (f"silent {target}", f"NaN or infinity passes silently through {target}")
    if largest > _MODERATE:
        return "overflow", None
    return "finding", (f"not finite {target}", f"not finite, from finite arguments: {target}")


def _names(target: Target, arguments: Mapping[str, Any]) -> set[str]:
    """Return the names that a refusal may use: arguments, those of a constructor, and keys."""
    made: list[Any] = [type(arguments["self"])] if "self" in arguments else []
    if inspect.isclass(owner := getattr(target.call, "__self__", None)):
        made.append(owner)
    names = {*arguments}
    modules = [value for value in arguments.values() if isinstance(value, torch.nn.Module)]
    made += [module.forward for module in modules]
    if modules:
        names.add("parameters")  # whose dtype may be wrong
    for call in (target.call, *made):
        names.update(inspect.signature(call).parameters)
    for value in arguments.values():
        if isinstance(value, dict):
            names.update(map(str, cast("dict[Any, Any]", value)))
    return names - {"self"}


def _place(error: Exception) -> str:
    """Return the innermost line of this project that the error passed through."""
    place, traceback = "outside", error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if _is_ours(file) and file != __file__:
            place = f"{Path(file).parent.name}/{Path(file).name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def _is_ours(file: str) -> bool:
    return not (file.startswith(("<", sysconfig.get_path("stdlib"))) or "site-packages" in file)


def _magnitude(value: Any) -> float:
    """Return the largest |v| and 1/|v| of all numbers v ≠ 0 of an argument; infinite for NaN."""
    magnitudes = [np.abs(values.astype(complex)) for _, values in _numbers("", value)]
    flat = np.concatenate([np.zeros(1), *(values.reshape(-1) for values in magnitudes)])
    if not np.isfinite(flat).all():
        return math.inf
    flat = flat[flat > 0]
    # Numbers below the normal ones have no inverse.
    return float(max(flat.max(), 1 / max(flat.min(), 1e-300))) if flat.size else 0.0


def _variances(name: str, values: np.ndarray) -> np.ndarray:
    """Return the variances among ``values``, by their name."""
    if name.endswith("covariance") and values.ndim > 1:
        return np.diagonal(values, axis1=-2, axis2=-1)
    return values if name.endswith("variance") and "log" not in name else np.zeros(0)


def _numbers(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the floating-point values inside ``value``, with the names of their holders."""
    match value:
        case Tensor():
            if value.is_floating_point() or value.is_complex():
                wide = torch.complex128 if value.is_complex() else torch.float64
                yield name, value.detach().to(wide).numpy()
        case np.ndarray():
            if value.dtype.kind in "fc":
                yield name, value
        case float() | complex():
            yield name, np.asarray(value)
        case torch.nn.Module():
            yield from _numbers(name, dict(value.state_dict()))
        case Mapping():
            for key, item in cast("Mapping[Any, Any]", value).items():
                yield from _numbers(f"{name}.{key}", item)
        case tuple() | list():
            fields = getattr(value, "_fields", None)
            for index, item in enumerate(cast("Sequence[Any]", value)):
                yield from _numbers(fields[index] if fields else name, item)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                yield from _numbers(field.name, getattr(value, field.name))
        case _:
            # Gaussians that are no dataclasses.
            for field in ("mean", "variance"):
                if isinstance(getattr(value, field, None), Tensor):
                    yield from _numbers(field, getattr(value, field))


# -- What a table must cover ------------------------------------------------------------------


def uncovered(
    modules: Sequence[ModuleType], targets: Sequence[Target], reasons: Mapping[str, str]
) -> list[str]:
    """Return public functions, constructors and methods that no target calls, without a reason.

    Raises:
        ValueError: ``reasons`` has a name for nothing, or for a target.
    """
    covered = {str(target) for target in targets}
    public = [getattr(module, name) for module in modules for name in module.__all__]
    missing = {name for thing in public for name in public_callables(thing)} - covered
    excused = {pattern: set(fnmatch.filter(missing, pattern)) for pattern in reasons}
    if useless := [pattern for pattern, names in excused.items() if not names]:
        raise ValueError(f"reasons must name what is public and not a target, got {useless}")
    return sorted(missing.difference(*excused.values()))


def public_callables(thing: Any) -> Iterator[str]:
    """Yield the names of a function, or of a class's constructor and public methods."""
    if inspect.isfunction(thing):
        yield thing.__qualname__
    elif inspect.isclass(thing) and not issubclass(thing, (Exception, tuple)):
        methods = vars(thing)
        if {"__init__", "__post_init__"} & set(methods) and not getattr(thing, "_is_protocol", 0):
            yield thing.__qualname__
        for name, method in methods.items():
            method = getattr(method, "__func__", method)
            abstract = getattr(method, "__isabstractmethod__", False)
            if inspect.isfunction(method) and not name.startswith("_") and not abstract:
                yield method.__qualname__


def undocumented(targets: Sequence[Target]) -> list[str]:
    """Return targets whose ``non_finite`` is said neither of function nor of class nor module."""
    missing: list[str] = []
    for target in targets:
        module = sys.modules[target.call.__module__]
        owner = getattr(module, target.call.__qualname__.partition(".")[0], None)
        places = [target.call, module, *(inspect.getmro(owner) if inspect.isclass(owner) else ())]
        words = " ".join(" ".join(str(place.__doc__) for place in places).split())
        if target.non_finite not in words:
            missing.append(str(target))
    return missing


class FuzzSuite:
    """Fuzz tests of a member's public functions; inherit, and fill in the table.

    Attributes:
        modules: whose ``__all__`` is public.
        targets: the table; the command line reads a file's ``TARGETS``.
        reasons: why some are not called, as in ``uncovered``.
        calls: of every target.
    """

    modules: Sequence[ModuleType]
    targets: Sequence[Target]
    reasons: Mapping[str, str]
    calls: int = 4

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Make a test of every target."""
        if "target" in metafunc.fixturenames:
            metafunc.parametrize("target", self.targets, ids=str)

    def test_a_call_succeeds_or_is_refused_by_name(self, target: Target) -> None:
        """Fuzz the target."""
        report = fuzz(target, calls=self.calls)
        if report.findings:
            raise AssertionError(str(report))

    def test_a_target_takes_its_arguments(self) -> None:
        """Compare names: one that a function doesn't know would look like a refusal of it."""
        for target in self.targets:
            # Of a wrapper its own, and those of what it wraps.
            wrapped = inspect.signature(target.call).parameters
            wrapper = inspect.signature(target.call, follow_wrapped=False).parameters
            unknown = target.arguments.keys() - wrapped.keys() - wrapper.keys()
            if unknown and not any(each.kind is each.VAR_KEYWORD for each in wrapped.values()):
                raise AssertionError(f"{target} does not take {sorted(unknown)}")

    def test_every_public_name_is_fuzzed_or_has_a_reason(self) -> None:
        """Compare the table with the public names."""
        if missing := uncovered(self.modules, self.targets, self.reasons):
            raise AssertionError(f"neither fuzzed nor excused: {missing}")

    def test_results_that_are_not_finite_are_documented(self) -> None:
        """Look for the words in the documentation."""
        if missing := undocumented(self.targets):
            raise AssertionError(f"not documented: {missing}")


# -- Command line -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz the tables of members, print counts and findings; return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="fuzz", description=main.__doc__)
    parser.add_argument("--calls", type=int, default=50_000, help="calls of all members together")
    parser.add_argument("--only", default="", help="part of the names of the targets to call")
    parser.add_argument("members", nargs="+", type=Path, help="folders with tests/test_fuzz.py")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tables = {
        member.name: [t for t in load_targets(member) if chosen.only in str(t)]
        for member in chosen.members
        if (member / "tests" / "test_fuzz.py").is_file()
    }
    share = -(-chosen.calls // sum(map(len, tables.values())))
    print(_ROW.format("member", *_KINDS, "calls", "seconds"))
    total, seconds = Report(), 0.0
    for member, targets in tables.items():
        report, started = Report(), time.perf_counter()
        for target in targets:
            report.add(fuzz(target, share))
        seconds += time.perf_counter() - started
        _print_row(member, report, time.perf_counter() - started)
        total.add(report)
    _print_row("all", total, seconds)
    print(total)
    return 1 if total.findings else 0


_KINDS = (
    *("success", "documented", "overflow"),
    *("ValueError", "TypeError", "CholeskyError", "memory", "finding"),
)
_ROW = "{:12}" + "{:>14}" * (len(_KINDS) + 2)


def _print_row(member: str, report: Report, seconds: float) -> None:
    counts = [report.outcomes[kind] for kind in _KINDS]
    others = report.calls - sum(counts)
    counts[_KINDS.index("ValueError")] += others  # its subclasses
    print(_ROW.format(member, *counts, report.calls, f"{seconds:.0f}"), flush=True)


def load_targets(member: Path) -> list[Target]:
    """Return the table of a member, by its folder."""
    spec = importlib.util.spec_from_file_location(
        f"fuzz_{member.name}", member / "tests" / "test_fuzz.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.TARGETS


if __name__ == "__main__":
    sys.exit(main())
