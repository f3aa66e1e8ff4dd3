"""The same work by what is installed: torch, FlashInfer, flash-attn, CuPy. A peer that is missing or fails says so."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu_cases import Case

Work = Callable[[], object]


def installed() -> dict[str, str]:
    """Return the versions of the peers that can be imported."""
    found = {}
    for name in ("torch", "flashinfer", "flash_attn", "cupy"):
        try:
            found[name] = str(getattr(importlib.import_module(name), "__version__", "?"))
        except Exception as error:
            found[name] = f"missing ({type(error).__name__})"
    return found


def peers(case: Case) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Yield (name, function that prepares the work) for every peer that can do the work of a case."""
    kind = case.shape.get("kind")
    if case.group in ("decode", "prefill") and kind in ("bfloat16", "float16", "float32"):
        yield "torch sdpa, gathered already", lambda: _sdpa(case)
        if case.group == "decode" and kind != "float32":
            yield "FlashInfer", lambda: _flashinfer_decode(case)
            yield "flash-attn, pages of 256", lambda: _flash_attn(case)
            if case.shape["length"] == 8192 and case.shape["heads"][1] == 8:  # it is compiled for each shape
                yield "torch flex attention over pages", lambda: _flex(case)
        elif kind != "float32":
            yield "FlashInfer", lambda: _flashinfer_prefill(case)
    elif "features" in case.shape:
        yield "torch matmul", lambda: _torch_product(case)
        if kind != "bfloat16":
            yield "CuPy matmul", lambda: _cupy_product(case)
    elif case.shape.get("operation", "").startswith("rms_norm"):
        yield "torch rms_norm", lambda: _torch_norm(case)


def _torch() -> Any:
    return importlib.import_module("torch")


def _random(torch: Any, kind: str, *shape: int) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(getattr(torch, kind))


def _sdpa(case: Case) -> Work:
    torch, s = _torch(), case.shape
    heads, kv_heads = s["heads"]
    new = s.get("new", 1)
    q = _random(torch, s["kind"], s["batch"], heads, new, s["dim"])
    k, v = (_random(torch, s["kind"], s["batch"], kv_heads, s["length"], s["dim"]) for _ in "kv")
    attend = torch.nn.functional.scaled_dot_product_attention
    mask = None
    if new > 1 and new < s["length"]:
        bias = importlib.import_module("torch.nn.attention.bias")
        mask = bias.causal_lower_right(new, s["length"])
    causal = new == s["length"]
    if mask is not None:  # this mask knows no groups of heads
        k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    grouped = mask is None and heads != kv_heads
    return lambda: attend(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)


def _flex(case: Case) -> Work:
    """flex_attention over a paged cache: pages of 128, as its block mask wants them."""
    torch, s = _torch(), case.shape
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    paged = importlib.import_module("torch.nn.attention.experimental._paged_attention")
    heads, kv_heads = s["heads"]
    page, batch, length = 128, s["batch"], s["length"]
    each = -(-length // page)
    cache = paged.PagedAttention(batch * each, page, batch, device="cuda")
    k, v = (_random(torch, s["kind"], 1, kv_heads, batch * each * page, s["dim"]) for _ in "kv")
    for i in range(batch):
        cache.reserve(torch.tensor(i, device="cuda"), torch.tensor(length, device="cuda"))
    q = _random(torch, s["kind"], batch, heads, 1, s["dim"])
    plain = flex.create_block_mask(
        lambda b, h, i, j: j < length, batch, None, 1, each * page, device="cuda", BLOCK_SIZE=(page, page)
    )
    mask = cache.convert_logical_block_mask(plain)
    attend = torch.compile(flex.flex_attention)
    return lambda: attend(q, k, v, block_mask=mask, enable_gqa=heads != kv_heads)


def _indices(torch: Any, case: Case) -> tuple[Any, Any, Any, int]:
    s = case.shape
    page_size = s.get("page_size", 16)
    each = -(-s["length"] // page_size)
    order = torch.randperm(s["batch"] * each, device="cuda").to(torch.int32)
    starts = torch.arange(s["batch"] + 1, device="cuda", dtype=torch.int32) * each
    last = torch.full((s["batch"],), s["length"] - (each - 1) * page_size, device="cuda", dtype=torch.int32)
    return starts, order, last, page_size


def _flashinfer_decode(case: Case) -> Work:
    torch, s = _torch(), case.shape
    flashinfer = importlib.import_module("flashinfer")
    heads, kv_heads = s["heads"]
    starts, order, last, page_size = _indices(torch, case)
    cache = tuple(_random(torch, s["kind"], len(order), page_size, kv_heads, s["dim"]) for _ in "kv")
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    cores = heads // kv_heads >= 4
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=cores)
    dtype = getattr(torch, s["kind"])
    wrapper.plan(
        starts, order, last, heads, kv_heads, s["dim"], page_size, q_data_type=dtype, kv_data_type=dtype
    )
    q = _random(torch, s["kind"], s["batch"], heads, s["dim"])
    return lambda: wrapper.run(q, cache)


def _flashinfer_prefill(case: Case) -> Work:
    torch, s = _torch(), case.shape
    flashinfer = importlib.import_module("flashinfer")
    heads, kv_heads = s["heads"]
    starts, order, last, page_size = _indices(torch, case)
    cache = tuple(_random(torch, s["kind"], len(order), page_size, kv_heads, s["dim"]) for _ in "kv")
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    rows = torch.arange(s["batch"] + 1, device="cuda", dtype=torch.int32) * s["new"]
    wrapper.plan(
        rows, starts, order, last, heads, kv_heads, s["dim"], page_size, causal=True,
        q_data_type=getattr(torch, s["kind"]),
    )  # fmt: skip
    q = _random(torch, s["kind"], s["batch"] * s["new"], heads, s["dim"])
    return lambda: wrapper.run(q, cache)


def _flash_attn(case: Case) -> Work:
    torch, s = _torch(), case.shape
    flash_attn = importlib.import_module("flash_attn")
    heads, kv_heads = s["heads"]
    page = 256
    each = -(-s["length"] // page)
    k, v = (_random(torch, s["kind"], s["batch"] * each, page, kv_heads, s["dim"]) for _ in "kv")
    table = torch.randperm(s["batch"] * each, device="cuda").to(torch.int32).reshape(s["batch"], each)
    lengths = torch.full((s["batch"],), s["length"], device="cuda", dtype=torch.int32)
    q = _random(torch, s["kind"], s["batch"], 1, heads, s["dim"])
    attend = flash_attn.flash_attn_with_kvcache
    return lambda: attend(q, k, v, cache_seqlens=lengths, block_table=table, causal=True)


def _torch_product(case: Case) -> Work:
    """Rows in the type of the weights, as a model in that type has them."""
    torch, s = _torch(), case.shape
    x = _random(torch, s["kind"], s["tokens"], s["width"])
    weight = _random(torch, s["kind"], s["features"], s["width"])
    return lambda: torch.nn.functional.linear(x, weight)


def _cupy_product(case: Case) -> Work:
    cupy, s = importlib.import_module("cupy"), case.shape
    x = cupy.random.standard_normal((s["tokens"], s["width"]), dtype=cupy.float32).astype(s["kind"])
    weight = cupy.random.standard_normal((s["features"], s["width"]), dtype=cupy.float32).astype(s["kind"]).T
    stream = cupy.cuda.Stream(null=True)

    def work() -> None:
        with stream:
            cupy.matmul(x, weight)

    return work


def _torch_norm(case: Case) -> Work:
    torch, s = _torch(), case.shape
    x, y = (_random(torch, "float32", s["tokens"], s["width"]) for _ in "xy")
    weight = torch.ones(s["width"], device="cuda")
    norm = torch.nn.functional.rms_norm
    if s["operation"].endswith("residual"):
        return lambda: norm(x.add_(y), (s["width"],), weight, 1e-5)
    return lambda: norm(x, (s["width"],), weight, 1e-5)
