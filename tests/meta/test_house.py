"""One word names the module, its chapter and its test (house rule 1)."""

from __future__ import annotations

from tests.meta.sources import ROOT, is_package, modules

# Modules that share another word's chapter or test, each with the reason.
PARTS: dict[str, str] = {
    # module: the word whose chapter and test cover it
    "pagedref.attention.latent": "mla",
    "pagedref.attention.levels": "cascade",
    "pagedref.attention.mla_forms": "mla",
    "pagedref.attention.ordered_rows": "ordered",
    "pagedref.attention.ordered_textbook": "ordered",
    "pagedref.attention.parallel": "tiles",
    "pagedref.attention.scalings": "rotary",
    "pagedref.attention.tree": "ordered",
    "pagedref.attention.reader": "tiles",
    "pagedref.attention.view": "tiles",
    "pagedref.conformance.agreement": "conformance",
    "pagedref.conformance.alarm": "conformance",
    "pagedref.conformance.cache_checks": "conformance",
    "pagedref.conformance.cases": "conformance",
    "pagedref.conformance.checks": "conformance",
    "pagedref.conformance.fault_cases": "conformance",
    "pagedref.conformance.mutants": "conformance",
    "pagedref.conformance.layer_checks": "conformance",
    "pagedref.conformance.diagnosis": "conformance",
    "pagedref.conformance.fuzz": "conformance",
    "pagedref.conformance.judged": "conformance",
    "pagedref.conformance.kills": "conformance",
    "pagedref.conformance.laws": "conformance",
    "pagedref.conformance.move_slips": "conformance",
    "pagedref.conformance.plugin": "conformance",
    "pagedref.conformance.probes": "conformance",
    "pagedref.conformance.replies": "conformance",
    "pagedref.conformance.runner": "conformance",
    "pagedref.conformance.slips": "conformance",
    "pagedref.conformance.steps": "conformance",
    "pagedref.conformance.verdict": "conformance",
    "pagedref.conformance.widths": "conformance",
    "pagedref.conformance.refusals": "conformance",
    "pagedref.conformance.storage_checks": "conformance",
    "pagedref.layers.activation": "layers",
    "pagedref.layers.crew": "linear",
    "pagedref.layers.embedding": "layers",
    "pagedref.layers.norm": "layers",
    "pagedref.layers.turn": "layers",
    "pagedref.memory.stores": "swap",
    "pagedref.plotting.simulation": "plotting",
    "pagedref.models.chat": "tokenizer",
    "pagedref.models.demo": "cli",
    "pagedref.models.draft": "speculate",
    "pagedref.models.fields": "config",
    "pagedref.models.filters": "sampling",
    "pagedref.models.gguf_file": "checkpoint",
    "pagedref.models.gguf_model": "checkpoint",
    "pagedref.models.gguf_tokenizer": "tokenizer",
    "pagedref.models.noise": "sampling",
    "pagedref.models.prompts": "model",
    "pagedref.models.rope": "config",
    "pagedref.models.safetensors_file": "checkpoint",
    "pagedref.models.tiny_text": "tiny",
    "pagedref.models.weights": "checkpoint",
    "pagedref.scheduling.decisions": "scheduler",
    "pagedref.scheduling.ticket": "scheduler",
    "pagedref.tensor_file": "save_file",
    "pagedref.mla_call": "mla",
}
NO_CHAPTER: dict[str, str] = {
    "pagedref": "the front page of the documentation",
    "pagedref.__main__": "one line that calls cli",
}
NO_TEST: dict[str, str] = {
    "pagedref": "tests/meta/test_imports.py",
    "pagedref.__main__": "one line that calls cli",
    "pagedref.conformance.agreement": "tests/conformance: every check compares through it",
    "pagedref.conformance.cache_checks": "tests/conformance/test_checks.py and test_mutants.py run them",
    "pagedref.conformance.cases": "tests/conformance: every check is made of them",
    "pagedref.conformance.layer_checks": "tests/spec/test_layers.py and tests/kernels/test_layers.py run them",
    "pagedref.conformance.fuzz": "tests/conformance/test_runner.py",
    "pagedref.conformance.judged": "tests/conformance/test_runner.py",
    "pagedref.conformance.move_slips": "tests/conformance/test_kills.py",
    "pagedref.conformance.plugin": "tests/conformance/test_runner.py",
    "pagedref.conformance.probes": "tests/conformance/test_kills.py and test_diagnosis.py ask them",
    "pagedref.conformance.replies": "tests/conformance/test_diagnosis.py",
    "pagedref.conformance.slips": "tests/conformance/test_kills.py",
    "pagedref.conformance.steps": "tests/conformance/test_diagnosis.py: the right steps are a correct backend",
    "pagedref.conformance.verdict": "tests/conformance/test_runner.py",
    "pagedref.conformance.widths": "tests/conformance/test_runner.py",
    "pagedref.conformance.refusals": "tests/conformance/test_checks.py runs them",
    "pagedref.conformance.storage_checks": "tests/conformance/test_storage.py runs them",
}
# Packages have a chapter of their own; their tests are those of their modules.


def word(module: str) -> str:
    """Name the chapter and the test of a module: its own last word, or the one that it is part of."""
    return PARTS.get(module, module.split(".")[-1])


def public_modules() -> list[str]:
    return [name for name in modules("pagedref") if not any(piece.startswith("_") for piece in name.split(".")[1:])]


def has_test(module: str) -> bool:
    """Tell whether there is a test of this word, or of the module that this one is part of."""
    words = {word(module), module.split(".")[-1]}
    return any(list((ROOT / "tests").glob(f"*/test_{name}.py")) for name in words)


def test_every_module_has_its_chapter() -> None:
    missing = [
        f"docs/spec/{word(name)}.rst for {name}"
        for name in public_modules()
        if name not in NO_CHAPTER and not (ROOT / "docs" / "spec" / f"{word(name)}.rst").exists()
    ]
    assert not missing, "missing chapters:\n" + "\n".join(missing)


def test_every_module_has_its_test() -> None:
    missing = [
        f"tests/*/test_{word(name)}.py for {name}"
        for name in public_modules()
        if name not in NO_TEST and not is_package(name) and not has_test(name)
    ]
    assert not missing, "missing tests:\n" + "\n".join(missing)


def test_every_chapter_has_its_module() -> None:
    words = {word(name) for name in modules("pagedref")}
    strangers = [path.name for path in (ROOT / "docs" / "spec").glob("*.rst") if path.stem not in words | {"index"}]
    assert not strangers, f"chapters without a module: {strangers}"


def test_a_part_is_in_the_chapter_it_is_part_of() -> None:
    lost = []
    for module, whole in PARTS.items():
        chapter = ROOT / "docs" / "spec" / f"{whole}.rst"
        if module not in modules("pagedref") or module not in chapter.read_text():
            lost.append(f"{module} is not in docs/spec/{whole}.rst")
    assert not lost, "\n".join(lost)


def test_exceptions_are_still_needed() -> None:
    stale = [name for name in {*NO_CHAPTER, *NO_TEST} if name not in modules("pagedref")]
    stale += [name for name in NO_CHAPTER if (ROOT / "docs" / "spec" / f"{word(name)}.rst").exists()]
    assert not stale, f"no longer exceptions: {stale}"
