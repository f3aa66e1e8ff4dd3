"""The runner: everything that the suite asks of one backend, in order, as a verdict.

Checks first, alarm last. What a backend does not offer is listed and fails nothing else.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from pagedref.conformance import fuzz as fuzzing
from pagedref.conformance.agreement import NotRefused, OtherRefusal
from pagedref.conformance.alarm import error_ratio, long_reductions
from pagedref.conformance.cases import judged_as, make_case
from pagedref.conformance.checks import CHECKS
from pagedref.conformance.diagnosis import diagnose
from pagedref.conformance.fault_cases import FAULT_CASES, FaultCase
from pagedref.conformance.judged import Judged, is_not_offered
from pagedref.conformance.laws import LAWS
from pagedref.conformance.probes import PROBES
from pagedref.conformance.storage_checks import FORMATS, STORED_CHECKS
from pagedref.conformance.verdict import Finding, Verdict
from pagedref.conformance.widths import WIDTHS
from pagedref.contract import DTYPES, OPERATIONS
from pagedref.errors import ContractError, NotOffered
from pagedref.kv_format import KVFormat

__all__ = ["PROFILES", "Profile", "run"]


@dataclass(frozen=True)
class Profile:
    """How much is asked.

    Attributes
    ----------
    formats : int
        Of the stored forms every n-th is asked for.
    sizes : tuple of (q_lens, kv_lens)
        Batches for the laws.
    head_dim : int
        Of these batches.
    seeds : int
        Runs of each law.
    examples : int
        Random cases of each operation.
    long : int
        Keys in the sums of the alarm.
    large : bool
        Whether pools larger than memory are addressed.
    """

    formats: int
    sizes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    head_dim: int
    seeds: int
    examples: int
    long: int
    large: bool


_SMALL = ((3, 1, 2), (9, 4, 6))
PROFILES = MappingProxyType(
    {
        "quick": Profile(6, (_SMALL,), 8, 1, 8, 300, False),
        "full": Profile(1, (_SMALL, ((5, 5), (5, 64)), ((4, 1), (900, 3000))), 16, 3, 400, 1024, True),
        "gpu": Profile(1, (_SMALL, ((64, 1, 7), (2_000, 70_000, 500))), 128, 2, 60, 2048, False),
    }
)
"""The profiles: ``quick`` where a kernel is emulated, ``full``, and ``gpu`` with sizes that no oracle reaches."""


def run(
    backend: Any,
    name: str,
    *,
    operations: Iterable[str] | None = None,
    dtypes: Iterable[str] | None = None,
    profile: str = "quick",
    progress: Callable[[str], None] = lambda what: None,
) -> Verdict:
    """Judge a backend.

    Parameters
    ----------
    backend : module or object
        Has some or all operations of :data:`pagedref.contract.OPERATIONS`. It may say by attributes which types it
        takes (``storage`` for caches, ``query`` for queries: tuples of names) and in which it computes
        (``arithmetic``, such as ``"float16"``; float32 otherwise).
    name : str
        For the verdict and for scripts: ``module:attribute`` or a known name.
    operations : iterable of str, optional
        Only these.
    dtypes : iterable of str, optional
        Only caches of these types.
    profile : str
        A key of :data:`PROFILES`.
    progress : callable, optional
        Told what is asked next.

    Returns
    -------
    Verdict
        Never raises for what a backend does; a crash of its process is beyond it.

    Raises
    ------
    ContractError
        A name of `operations`, `dtypes` or `profile` is unknown.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> import pagedref.attention
    >>> merge = SimpleNamespace(merge_states=pagedref.attention.merge_states)
    >>> verdict = run(merge, "merge alone")
    >>> verdict.ok, verdict.conclusion
    (True, 'right: all that is offered agrees with the specification')
    """
    _known("operations", operations, OPERATIONS)
    _known("dtypes", dtypes, set(DTYPES["numpy"]["storage"]))
    if profile not in PROFILES:
        raise ContractError(f"run: profile is unknown, got {profile!r}, need one of {', '.join(PROFILES)}")
    begin = time.perf_counter()
    suite = _Suite(backend, name, operations, dtypes, profile, progress)
    with warnings.catch_warnings(), np.errstate(all="ignore"), judged_as(suite.arithmetic):
        warnings.simplefilter("ignore")
        suite.run()
    suite.verdict.seconds = time.perf_counter() - begin
    return suite.verdict


def _known(what: str, names: Iterable[str] | None, known: Any) -> None:
    """Refuse unknown names."""
    for name in names or ():
        if name not in known:
            raise ContractError(f"run: {what} has an unknown name, got {name!r}, need {', '.join(sorted(known))}")


class _Suite:
    """One run."""

    def __init__(
        self, backend: Any, name: str, operations: Any, dtypes: Any, profile: str, progress: Callable[[str], None]
    ) -> None:
        self.judged = Judged(backend, operations)
        self.profile = PROFILES[profile]
        self.progress = progress
        self.arithmetic = str(getattr(backend, "arithmetic", "float32"))
        stored = getattr(backend, "storage", None) or DTYPES.get(name, DTYPES["numpy"])["storage"]
        self.storage = tuple(x for x in stored if dtypes is None or x in dtypes)
        self.query = tuple(getattr(backend, "query", None) or DTYPES.get(name, {}).get("query", ("float32",)))
        device = getattr(backend, "device", None)
        self.verdict = Verdict(name, str(device()) if callable(device) else "this machine", profile)
        if self.arithmetic != "float32":
            self.verdict.notes.append(f"judged by the bound of {self.arithmetic}, in which it says it computes")

    def run(self) -> None:
        """Ask everything."""
        missing = [name for name in OPERATIONS if name not in self.judged.offered]
        if missing:
            self.verdict.notes.append(f"not offered: {', '.join(missing)}")
        if not self.judged.offered:
            return
        self.probes()
        for group, name, call in self.questions():
            self.ask(group, name, call)
        self.random_cases()
        self.alarm()
        if self.judged.lacks_lse:
            self.verdict.notes.append("lse is not offered: outputs are judged alone")

    def questions(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """Yield group, name and call of every check."""
        judged, arithmetic = self.judged, self.arithmetic
        if arithmetic == "float32":  # the others compare with numbers that a narrow type does not hold
            for dtype in ("float32", "float64"):
                if dtype in self.storage and dtype in self.query:
                    for name, check in CHECKS.items():
                        yield "checks", f"{name} ({dtype})", partial(check, judged, dtype)
            for form in FORMATS[:: self.profile.formats]:
                if form.dtype.name in self.storage:
                    for name, stored in STORED_CHECKS.items():
                        yield "stored forms", f"{name}: {_words(form)}", partial(stored, judged, form)
            for case in FAULT_CASES.values():
                yield "faults", f"{case.number} {case.what}", partial(self.fault, case)
        for number, law in LAWS.items():
            for at, (_, kv_lens) in enumerate(self.profile.sizes):
                for seed in range(self.profile.seeds if at == 0 else 1):
                    dtype = "float32" if "float32" in self.storage else self.storage[0]
                    size = f"{max(kv_lens)} keys" + (f", seed {seed}" if seed else "")
                    what = f"{number} {law.text} ({size})"
                    yield "laws", what, partial(self.law, number, seed, at, dtype)
        for width in WIDTHS:
            if self.profile.large or not width.large:
                yield "index widths", width.name, partial(self.width, width)

    def ask(self, group: str, name: str, call: Callable[[], object]) -> None:
        """Run one check and note what came of it."""
        self.progress(f"{group}: {name}")
        status, text = "holds", ""
        try:
            call()
        except (NotRefused, OtherRefusal) as error:
            if is_not_offered(error):
                status, text = "not offered", _reason(error)
            else:
                status, text = "accepts", str(error)
        except Exception as error:
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            status = "not offered" if is_not_offered(error) else "fails"
            text = _reason(error) if status == "not offered" else text
        if status == "fails" and group == "faults" and not self.verdict.named:
            number, what = name.split(" ", 1)
            self.verdict.hints.append(f"fault {number} of public systems; right is: {what}")
        if status == "fails" and "wrap" in text:
            self.verdict.hints.append(text)
        self.verdict.findings.append(Finding(group, name, status, text))

    def probes(self) -> None:
        """Ask the probes, and name what is wrong."""
        asked = [name for name, probe in PROBES.items() if set(probe.stores) <= set(self.storage)]
        self.progress("probes")
        raw = self.judged.backend
        found = diagnose(
            raw, operations=self.judged.offered, offered=is_not_offered, arithmetic=self.arithmetic, names=asked
        )
        for name, reply in found.replies.items():
            status = "not offered" if not reply.offered else "holds" if reply.right else "fails"
            text = reply.wrong if reply.offered else _short(reply.error)
            self.verdict.findings.append(Finding("probes", name, status, text))
            if reply.right and reply.probe.operation in ("paged_decode", "paged_prefill", "merge_states"):
                largest = self.verdict.fractions.get(reply.probe.operation, 0.0)
                self.verdict.fractions[reply.probe.operation] = max(largest, reply.fraction)
        self.verdict.named = found.named
        raised: dict[str, list[str]] = {}
        for name in found.unexplained:
            if found.replies[name].error:
                raised.setdefault(found.replies[name].error, []).append(name.split(": ", 1)[-1])
        self.verdict.hints += [f"{error} ({', '.join(names[:3])})" for error, names in raised.items()]

    def fault(self, case: FaultCase) -> None:
        """Run the case of a fault of public systems, if the backend has what it needs."""
        lacking = [x for x in case.beyond if x not in self.judged.offered]
        lacking += [x for x in case.stores if x not in self.storage]
        if lacking:
            raise NotOffered(f"{', '.join(lacking)} is not offered")
        case.run(self.judged)

    def law(self, number: str, seed: int, at: int, dtype: str) -> None:
        """Run one law on one batch."""
        q_lens, kv_lens = self.profile.sizes[at]
        head_dim = 8 if at == 0 else self.profile.head_dim
        case = make_case(
            seed + 70, q_lens, kv_lens, dtype=dtype, page_size=4 if at == 0 else 16, head_dim=head_dim, poison=2.0
        )
        LAWS[number].run(self.judged, case, seed)

    def width(self, width: Any) -> None:
        """Address one far frame."""
        if "int8" not in self.storage:
            raise NotOffered("int8 caches are not offered")
        width.run(self.judged)

    def random_cases(self) -> None:
        """Try random cases, and shrink the first that fails."""
        if not fuzzing.is_installed():
            self.verdict.notes.append('no random cases: they need hypothesis, pip install "pagedref[conform]"')
            return
        types = [x for x in ("float32", "float16", "bfloat16") if x in self.storage and x in self.query]
        for operation in ("decode", "prefill"):
            if f"paged_{operation}" not in self.judged.offered:
                continue
            for dtype in types:
                self.progress(f"random cases: {operation} {dtype}")
                found = fuzzing.fuzz(
                    self.judged, operation, examples=max(self.profile.examples // (1 if dtype == "float32" else 4), 2),
                    dtype=dtype, not_judged=is_not_offered,
                )  # fmt: skip
                what, status = f"{operation} of {dtype}", "holds" if found is None else "fails"
                self.verdict.findings.append(Finding("random cases", what, status, "" if found is None else found[1]))
                if found is not None and not self.verdict.script:
                    self.verdict.script = fuzzing.script(found[0], operation, self.verdict.backend)

    def alarm(self) -> None:
        """Compare the errors of long sums with those of NumPy, where everything else is right."""
        able = {"paged_prefill"} <= set(self.judged.offered) and "float32" in self.storage and not self.verdict.failing
        if able and self.arithmetic == "float32" and not self.judged.lacks_lse:
            self.progress("alarm")
            self.verdict.ratio = error_ratio(self.judged, long_reductions(length=self.profile.long, count=2))


def _reason(error: BaseException) -> str:
    """Return what is not offered, in a line."""
    texts = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        texts.append(str(error))
    return _short(*texts)


def _short(*texts: str) -> str:
    """Return what texts of errors say is not offered."""
    for text in texts:
        if match := re.search(r"unexpected keyword argument '(\w+)'", text):
            return f"keyword {match[1]}"
        if match := re.search(r"(\w+): is not offered by the backend", text):
            return str(match[1])
    if "lacks operations" in texts[-1]:
        return "a whole cache: it needs every operation"
    return " ".join(texts[-1].split())


def _words(form: KVFormat) -> str:
    """Return a stored form in words."""
    parts = [form.kind, form.granularity or "", str(form.group_size or ""), "zero point" if form.zero_point else ""]
    return " ".join(part for part in parts if part)
