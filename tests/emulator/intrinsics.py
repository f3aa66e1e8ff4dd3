"""Inline-PTX intrinsics for the Numba tests (ld.global.nc.v4, cp.async, mma, ex2)."""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

i32, i64, f32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
U4, F4 = types.UniTuple(types.uint32, 4), types.UniTuple(types.float32, 4)


def _multi(builder, rty, n, asm, cons, args):
    sty = ir.LiteralStructType([rty] * n)
    fn = ir.InlineAsm(ir.FunctionType(sty, [a.type for a in args]), asm, cons, side_effect=True)
    r = builder.call(fn, args)
    return [builder.extract_value(r, j) for j in range(n)]


def _ptr(context, builder, ty, val, idx, space, ity):
    ary = context.make_array(ty)(context, builder, val)
    p = builder.gep(ary.data, [idx])
    return builder.ptrtoint(builder.addrspacecast(p, p.type.pointee.as_pointer(space)), ity)


@intrinsic
def ldg_u32x4(typingctx, arr, i):
    def codegen(context, builder, sig, args):
        a = _ptr(context, builder, sig.args[0], args[0], args[1], 1, i64)
        v = _multi(builder, i32, 4, "ld.global.nc.v4.u32 {$0,$1,$2,$3}, [$4];", "=r,=r,=r,=r,l", [a])
        return context.make_tuple(builder, sig.return_type, v)

    return U4(arr, types.int64), codegen


@intrinsic
def cp_async16(typingctx, sm, si, gm, gi):
    def codegen(context, builder, sig, args):
        s = _ptr(context, builder, sig.args[0], args[0], args[1], 3, i32)
        g = _ptr(context, builder, sig.args[2], args[2], args[3], 1, i64)
        builder.call(
            ir.InlineAsm(
                ir.FunctionType(ir.VoidType(), [i32, i64]),
                "cp.async.cg.shared.global [$0], [$1], 16;",
                "r,l,~{memory}",
                side_effect=True,
            ),
            [s, g],
        )
        return context.get_dummy_value()

    return types.void(sm, types.int64, gm, types.int64), codegen


def _void(text):
    @intrinsic
    def f(typingctx):
        def codegen(context, builder, sig, args):
            builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", side_effect=True), [])
            return context.get_dummy_value()

        return types.void(), codegen

    return f


cp_async_commit, cp_async_wait_all = _void("cp.async.commit_group;"), _void("cp.async.wait_all;")
cp_async_wait1 = _void("cp.async.wait_group 1;")


@intrinsic
def ex2(typingctx, x):
    def codegen(context, builder, sig, args):
        return builder.call(ir.InlineAsm(ir.FunctionType(f32, [f32]), "ex2.approx.ftz.f32 $0, $1;", "=f,f"), args)

    return types.float32(types.float32), codegen


@intrinsic
def mma_bf16(typingctx, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    def codegen(context, builder, sig, args):
        v = _multi(
            builder,
            f32,
            4,
            (
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, "
                "{$8,$9}, {$10,$11,$12,$13};"
            ),
            "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
            list(args),
        )
        return context.make_tuple(builder, sig.return_type, v)

    return F4(*([types.uint32] * 6 + [types.float32] * 4)), codegen
