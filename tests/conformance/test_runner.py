"""The verdict and its forms, the command, the plugin, random cases and far frames."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pagedref.attention as fast
from pagedref.cli import main
from pagedref.conformance import make_case, oracle, run
from pagedref.conformance.fuzz import fuzz, script, spell
from pagedref.conformance.laws import LAWS, norm_bound
from pagedref.conformance.runner import PROFILES
from pagedref.conformance.slips import SLIPS
from pagedref.conformance.widths import WIDTHS
from pagedref.contract import OPERATIONS
from pagedref.errors import ContractError, NotOffered

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {slip.name: slip for slip in SLIPS}
KERNEL = '''
from types import SimpleNamespace
import numpy as np

def paged_decode(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, *, sm_scale=None):
    """Wrong twice: the last page is taken as full, and a sequence without keys is an error."""
    out, lse = np.zeros((*q.shape[:2], v_cache.shape[3]), q.dtype), np.zeros(q.shape[:2], np.float32)
    for at in range(len(q)):
        pages = kv_indices[kv_indptr[at] : kv_indptr[at + 1]]
        keys, values = (x[pages].reshape(-1, *x.shape[2:]) for x in (k_cache, v_cache))
        for head in range(q.shape[1]):
            kv = head // (q.shape[1] // keys.shape[1])
            scores = keys[:, kv] @ q[at, head] * (q.shape[2] ** -0.5 if sm_scale is None else sm_scale)
            weights = np.exp(scores - scores.max())
            out[at, head], lse[at, head] = weights @ values[:, kv] / weights.sum(), scores.max() + np.log(weights.sum())
    return out, lse

adapter = SimpleNamespace(paged_decode=paged_decode)
'''


@pytest.fixture(autouse=True)
def once(backend_name: str) -> None:
    if backend_name != "numpy":
        pytest.skip("no question to the backend under test: NumPy's run has asked it")


def backend_of(**operations: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**{name: getattr(fast, name) for name in OPERATIONS}, **operations})


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's kernel, as the working directory."""
    (tmp_path / "kernel_of_a_user.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("kernel_of_a_user", None)


def test_the_backend_under_test_holds(backend: Any, backend_name: str) -> None:
    verdict = run(backend, backend_name, profile="full")
    assert verdict.ok and not verdict.named, verdict.text()
    assert set(verdict.counts()) == {
        *("probes", "checks", "stored forms", "faults", "laws", "index widths", "random cases"),
    }
    assert not any(finding.status != "holds" for finding in verdict.findings)
    assert 0.1 < max(verdict.fractions.values()) <= 1
    assert verdict.ratio is not None and not verdict.ratio.rings
    assert verdict.seconds < 180


def test_a_users_kernel(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says what is wrong, which function raised, what is not offered, and prints a script that shows it."""
    assert main(["conform", "kernel_of_a_user:adapter", "--json", "verdict.json", "--html", "verdict.html"]) == 1
    text = capsys.readouterr().out
    assert "last page taken as full" in text and "paged_decode raised ValueError: zero-size array" in text
    assert "not offered: keyword window" in text and "not offered: paged_prefill" in text
    assert text.splitlines()[-1].startswith("wrong: ")
    verdict = json.loads((user / "verdict.json").read_text())
    assert not verdict["ok"] and verdict["specification"] == 1
    assert verdict["diagnosis"][0]["names"] == ["last_page_full"]
    assert {"group", "name", "status", "text"} == set(verdict["findings"][0])
    assert "last page taken as full" in (user / "verdict.html").read_text()
    lines = verdict["script"].splitlines()
    assert 5 < len(lines) <= 10
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{user}"}
    command = [sys.executable, "-c", verdict["script"]]
    done = subprocess.run(command, cwd=user, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and ("AssertionError" in done.stderr or "ValueError" in done.stderr)
    assert main(["conform", "kernel_of_a_user:adapter", "--markdown", "-"]) == 1
    assert capsys.readouterr().out.startswith("# pagedref conform: kernel_of_a_user:adapter")


def test_a_newcomers_errors_are_one_line(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (
        ("kernel_of_a_user:paged_decode", ("offers no operation", "a function", "paged_decode, paged_prefill")),
        ("kernel_of_a_user:adaptr", ("no attribute 'adaptr'",)),
        ("kernel_of_nobody:adapter", ("cannot be imported", "kernel_of_nobody")),
        ("nothing", ("is not a backend", "numpy")),
    ):
        assert main(["conform", name]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and all(word in error for word in words), error
    assert main(["conform", "numpy", "--ops", "paged_decod"]) == 2
    assert "got 'paged_decod'" in capsys.readouterr().err
    assert main(["conform", "numpy", "--json", "-", "--markdown", "-"]) == 2
    assert "--markdown" in capsys.readouterr().err
    with pytest.raises(ContractError, match="profile is unknown"):
        run(fast, "numpy", profile="slow")


def test_the_plugin_runs_the_suite_without_a_checkout(user: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_ADDOPTS", None)
    plugin = ["-p", "pagedref.conformance.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "--pagedref-backend", "kernel_of_a_user:adapter"]
    done = subprocess.run(command, cwd=user, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "pagedref backend: kernel_of_a_user:adapter" in done.stdout.replace("\n", " ") or "-q" in command
    assert "diagnosis: last page taken as full" in done.stdout and "test_group[probes]" in done.stdout
    command[-1] = "kernel_of_a_user:nothing"
    done = subprocess.run(command, cwd=user, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 4 and "no attribute 'nothing'" in done.stderr


def test_an_operation_that_is_missing_fails_nothing_else() -> None:
    verdict = run(SimpleNamespace(paged_decode=fast.paged_decode), "decode alone")
    assert verdict.ok and not verdict.named
    assert {"holds", "not offered"} == {finding.status for finding in verdict.findings}
    none = run(SimpleNamespace(), "nothing")
    assert not none.ok and none.conclusion.startswith("nothing was judged")
    only = run(fast, "numpy", operations=["merge_states"])
    assert only.ok and {f.name.split(":")[0] for f in only.findings if f.group == "probes"} == {"merge"}


def test_a_keyword_that_is_not_offered_is_no_fault() -> None:
    def decode(*arrays: Any, sinks: Any = None, **keywords: Any) -> Any:
        if sinks is not None:
            raise NotOffered("paged_decode: sinks are not offered, got an array, need None")
        return fast.paged_decode(*arrays, **keywords)

    verdict = run(SimpleNamespace(paged_decode=decode), "without sinks")
    assert verdict.ok
    assert any("sinks are not offered" in f.text for f in verdict.findings if f.status == "not offered")


def test_a_backend_without_lse_is_judged_by_its_output() -> None:
    verdict = run(SimpleNamespace(paged_prefill=lambda *a, **k: fast.paged_prefill(*a, **k).out), "out alone")
    assert verdict.ok and "lse is not offered: outputs are judged alone" in verdict.notes
    attend = BY_NAME["window_one_more"].backend.paged_prefill
    wrong = run(SimpleNamespace(paged_prefill=lambda *a, **k: attend(*a, **k).out), "out alone")
    assert [named.names for named in wrong.named] == [("window_one_more",)]


def test_results_of_the_wrong_form_are_told_with_the_function() -> None:
    verdict = run(SimpleNamespace(paged_decode=lambda *a, **k: "done"), "a string")
    assert any("paged_decode: returned str" in finding.text for finding in verdict.failing)


def test_input_that_is_accepted_is_noted_and_fails_nothing() -> None:
    def decode(*arrays: Any, **keywords: Any) -> Any:
        *rest, last = arrays
        return fast.paged_decode(*rest, np.clip(last, 1, rest[1].shape[1]).astype(last.dtype) * (last != 0), **keywords)

    verdict = run(SimpleNamespace(paged_decode=decode), "long last pages")
    assert verdict.ok
    assert any("was accepted" in finding.text for finding in verdict.findings if finding.status == "accepts")


def test_a_random_case_shrinks_to_little() -> None:
    found = fuzz(BY_NAME["window_one_more"].backend, "decode", examples=300)
    assert found is not None
    recipe, text = found
    assert "times its bound" in text and sum(recipe["kv_lens"]) <= 3 and recipe["window"] <= 2
    assert len(script(recipe, "decode", "m:a").splitlines()) <= 10
    case = spell({**recipe, "sinks": [0.5] * (recipe["num_kv_heads"] * recipe["group_size"])})
    assert case.keywords["sinks"].dtype == np.float32
    masked = spell({"seed": 0, "q_lens": [2], "kv_lens": [3], "mask": [[[1, 0, 1], [1, 1, 1]]]})
    assert masked.keywords["mask"][0].tolist() == [[True, False, True], [True, True, True]]


NARROW = {
    "frame numbers wrap at 65,536": lambda frame, stride: frame % 65_536,
    "frame numbers wrap at 32,768": lambda frame, stride: frame % 32_768,
    "offset modulo 2**32": lambda frame, stride: frame * stride % 2**32 // stride,
    "offset modulo 2**31": lambda frame, stride: frame * stride % 2**31 // stride,
}


@pytest.mark.parametrize("text", NARROW)
def test_a_narrow_index_is_named(text: str) -> None:
    def narrow(operation: Any) -> Any:
        def wrong(*arrays: Any, **keywords: Any) -> Any:
            *rest, k_cache, v_cache, indptr, indices, last = arrays
            frames = NARROW[text](indices.astype(np.int64), k_cache.strides[0] // k_cache.itemsize)
            return operation(*rest, k_cache, v_cache, indptr, frames, last, **keywords)

        return wrong

    said = []
    for width in WIDTHS:
        for name in ("paged_decode", "paged_prefill", "gather_kv"):
            try:
                width.run(SimpleNamespace(**{name: narrow(getattr(fast, name))}))
            except AssertionError as error:
                said.append(str(error))
    assert said and any(text in one for one in said), said
    for width in WIDTHS:
        width.run(fast)


@pytest.mark.parametrize("number", LAWS)
def test_a_law_needs_no_oracle(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 and 20,000 keys; and a backend that breaks laws is caught by them."""
    case = make_case(3, [3, 1], [2000, 20_000], page_size=16, head_dim=32)
    monkeypatch.setattr("pagedref.attention.dense.dense_attention", None)
    LAWS[number].run(fast, case, 0)


BROKEN = {
    "L1": "table_ignored", "L2": "batch_stride_of_one", "L3": "last_page_full", "L4": "top_left", "L5": "lse_base_2",
    "L9": "layout_hnd", "L10": "total_not_rescaled", "L11": "positions_one_more", "L12": "kv_head_by_modulo",
    "L13": "window_one_less", "L14": "exp_base_2", "L15": "not_normalised",
}  # fmt: skip


@pytest.mark.parametrize("number", sorted(set(BROKEN) - {"L11", "L14"}))
def test_a_law_can_fail(number: str) -> None:
    case = make_case(5, [3, 2], [21, 9], page_size=4, poison=2.0, spread=3.0)
    with pytest.raises(AssertionError):
        LAWS[number].run(BY_NAME[BROKEN[number]].backend, case, 0)


def test_other_laws_can_fail() -> None:
    case = make_case(5, [3, 2], [21, 9], page_size=4, poison=2.0)

    def stale(arrays: Any, src: Any, dst: Any) -> None:
        fast.copy_frames(arrays[:1], src, dst)

    def grows(q: Any, rows: Any, k_cache: Any, *arrays: Any, **keywords: Any) -> Any:
        """Answer differently in a larger pool."""
        return fast.paged_prefill(q if len(k_cache) == len(case.k_cache) else -q, rows, k_cache, *arrays, **keywords)

    wrong = {
        "L6": {"paged_prefill": grows},
        "L7": {"copy_frames": stale},
        "L8": {"copy_frames": stale},
        "L11": {"paged_decode": BY_NAME["scale_twice"].backend.paged_decode},
        "L14": {"paged_prefill": BY_NAME["scale_ignored"].backend.paged_prefill},
        "L16": {"copy_frames": stale},
    }
    for number, operations in wrong.items():
        with pytest.raises(AssertionError):
            LAWS[number].run(backend_of(**operations), case, 0)


def test_the_bound_from_norms_is_above_the_derived_one() -> None:
    for seed in range(120):
        rng = np.random.default_rng(seed)
        keywords: dict[str, Any] = {}
        if seed % 3 == 0:
            keywords["softcap"] = float(rng.choice([0.1, 2.0, 50.0]))
        if seed % 4 == 0:
            keywords["alibi_slopes"] = rng.random(4).astype(np.float32)
        if seed % 5 == 0:
            keywords["sinks"] = (3 * rng.standard_normal(4)).astype(np.float32)
        lens = [int(rng.integers(2, 60)), int(rng.integers(1, 9))]
        dim, spread = int(rng.choice([1, 8, 33])), float(rng.choice([0.3, 1.0, 10.0, 30.0]))
        case = make_case(seed, [2, 1], lens, head_dim=dim, spread=spread, **keywords)
        exact = oracle(case)
        assert exact.out_bound is not None and exact.lse_bound is not None
        for coarse, sharp in zip(norm_bound(case), (exact.out_bound, exact.lse_bound), strict=True):
            assert coarse >= sharp[np.isfinite(sharp)].max()


def test_profiles() -> None:
    assert {"quick", "full", "gpu"} == set(PROFILES)
    assert max(PROFILES["gpu"].sizes[-1][1]) > 65_536
