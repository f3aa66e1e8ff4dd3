"""Vectors: the same bits each time, described by their schema, passed by the reference, failed by what is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagedref.attention as reference
from pagedref.cli import main
from pagedref.conformance.manager_model import MANAGER_MUTANTS, adapt
from pagedref.conformance.mutants import MUTANTS
from pagedref.conformance.slips import SLIPS
from pagedref.conformance.vectors import check_logs, check_vectors, write_vectors
from pagedref.contract import OPERATIONS
from pagedref.errors import ContractError
from pagedref.memory import KVManager
from pagedref.tensor_file import TensorFile

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("vectors")
    write_vectors(place)
    return place


def entries(folder: Path) -> Iterator[dict[str, Any]]:
    for group in json.loads((folder / "manifest.json").read_text())["groups"]:
        yield from group["vectors"]


def test_the_same_bits_each_time(folder: Path, tmp_path: Path) -> None:
    count = write_vectors(tmp_path)
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == count + 2
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes(), name


def _fits(content: Any, schema: dict[str, Any], root: dict[str, Any], where: str) -> None:
    """Check content against the part of JSON schema that ours uses."""
    if "$ref" in schema:
        return _fits(content, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, where)
    if "anyOf" in schema:
        for one in schema["anyOf"]:
            try:
                return _fits(content, one, root, where)
            except AssertionError:
                continue
        raise AssertionError(f"{where}: fits none of several")
    assert content == schema.get("const", content), where
    assert content in schema.get("enum", [content]), where
    types = {"string": str, "array": list, "object": dict, "number": (int, float), "integer": int, "boolean": bool}
    wanted = schema.get("type", [])
    allowed = [types.get(name, type(None)) for name in ([wanted] if isinstance(wanted, str) else wanted)]
    assert not allowed or any(isinstance(content, kind) for kind in allowed), f"{where}: {content!r}"
    if isinstance(content, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        assert set(schema.get("required", [])) <= content.keys(), where
        for name, value in content.items():
            if name in properties:
                _fits(value, properties[name], root, f"{where}.{name}")
            elif isinstance(others, dict):
                _fits(value, others, root, f"{where}.{name}")
            else:
                assert others, f"{where}: {name} is not in the schema"
    elif isinstance(content, list):
        for at, value in enumerate(content):
            _fits(value, schema.get("items", {}), root, f"{where}[{at}]")


def test_the_manifest_fits_its_schema(folder: Path) -> None:
    schema, manifest = (json.loads((folder / name).read_text()) for name in ("schema.json", "manifest.json"))
    _fits(manifest, schema, schema, "manifest")
    broken = {**manifest, "version": 2}
    with pytest.raises(AssertionError):
        _fits(broken, schema, schema, "manifest")


def test_what_is_in_them(folder: Path) -> None:
    """Every operation but copy_frames, all three tolerances and outcomes, poison, names once, no other tensors."""
    vectors = list(entries(folder))
    assert {entry["operation"] for entry in vectors} == set(OPERATIONS) - {"copy_frames"}
    assert {entry["outcome"] for entry in vectors} == {"values", "refused", "either"}
    expected = [answer for entry in vectors for answer in entry["expected"].values()]
    assert {answer["agreement"] for answer in expected} == {"exact", "bound", "either"}
    assert len({entry["name"] for entry in vectors}) == len(vectors)
    poisoned = 0
    for entry in vectors:
        tensors = TensorFile(folder / entry["file"]).read()
        text = json.dumps(entry)
        assert all(f'"{name}"' in text for name in tensors), entry["name"]
        if "poison" in entry["flags"]:
            poisoned += not np.isfinite(tensors["k_cache"].astype(np.float64)).all()
    assert poisoned == sum("poison" in entry["flags"] for entry in vectors) > 5


def test_the_reference_passes(folder: Path) -> None:
    results = list(check_vectors(folder, reference))
    assert [result for result in results if result.status != "passed"] == []
    assert max(result.fraction for result in results) <= 1


def _killed(folder: Path, wrong: Iterable[tuple[str, Any]]) -> set[str]:
    with np.errstate(all="ignore"):
        return {name for name, backend in wrong if any(r.status == "failed" for r in check_vectors(folder, backend))}


def test_wrong_backends_fail(folder: Path) -> None:
    """Nineteen of twenty slips of attention, and every mutant whose fault shows in one small call."""
    killed = _killed(folder, ((slip.name, slip.backend) for slip in SLIPS))
    assert len(killed) >= 0.95 * len(SLIPS), {slip.name for slip in SLIPS} - killed
    mutants = _killed(folder, ((name, mutant.backend) for name, mutant in MUTANTS.items()))
    assert {
        "mask_top_left", "finite_sentinel", "zero_times_nan", "mean_for_empty_rows", "nan_for_empty_rows",
        "plus_infinity_for_empty", "merge_of_nothing_is_nan", "softcap_after_mask", "bias_sign_flipped",
        "sink_in_every_split", "merge_in_base_two", "lse_in_base_two", "cast_without_clamp", "slot_minus_one",
        "heads_rounded_down",
    } <= mutants  # fmt: skip


def test_managers_are_judged_by_the_logs(folder: Path) -> None:
    assert [r for r in check_logs(folder, adapt(KVManager, policy="clock")) if r.status != "passed"] == []
    for name, mutant in MANAGER_MUTANTS.items():
        assert any(result.status == "failed" for result in check_logs(folder, mutant.factory)), name


def test_logs_name_no_frame(folder: Path) -> None:
    """Behaviour only: hits, copies, refusals, and how many frames are available."""
    for log in json.loads((folder / "manifest.json").read_text())["logs"]:
        for step in log["steps"]:
            assert set(step) <= {"do", "seq", "parent", "tokens", "space", "expect"}
            assert set(step["expect"]) <= {"hit", "copies", "refused", "available"}


def test_damage_is_noticed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "v")
    entry = next(entries(folder))
    path = tmp_path / "v" / entry["file"]
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(ContractError, match="check_vectors: file is missing or damaged"):
        list(check_vectors(tmp_path / "v", reference))
    with pytest.raises(ContractError, match="check_vectors: folder has no manifest"):
        list(check_vectors(tmp_path, reference))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "write", str(tmp_path / "v")]) == 0
    assert main(["vectors", "check", str(tmp_path / "v")]) == 0
    text = capsys.readouterr().out
    assert "0 failed, 0 not offered" in text
    wrong = "pagedref.conformance._manager_mutants:_WritesShared"
    assert main(["vectors", "check", str(tmp_path / "v"), "--manager", wrong]) == 1
    assert "shared page written" in capsys.readouterr().out


def test_a_reader_without_python(folder: Path, tmp_path: Path) -> None:
    """examples/vectors_cpp: the reader is short, a plain attention agrees, one with another head rule does not."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    source = ROOT / "examples" / "vectors_cpp"
    if not source.exists():
        pytest.skip("no checkout: the examples are not here")
    assert len((source / "vectors.hpp").read_text().splitlines()) <= 60
    if compiler is None:
        pytest.skip("no C++ compiler")
    text = (source / "check_vectors.cpp").read_text()
    right, wrong = tmp_path / "right.cpp", tmp_path / "wrong.cpp"
    shutil.copy(source / "vectors.hpp", tmp_path)
    right.write_text(text)
    wrong.write_text(text.replace("d <= window[1].number", "d < window[1].number"))
    assert wrong.read_text() != text
    for program, agrees in ((right, True), (wrong, False)):
        binary = program.with_suffix("")
        subprocess.run([compiler, "-std=c++17", "-O1", str(program), "-o", str(binary)], check=True)
        done = subprocess.run([str(binary), str(folder)], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == agrees, done.stdout
        assert ("0 fail" in done.stdout) == agrees
        if not agrees:
            assert "window counts one key more or less" in done.stdout
