#!/usr/bin/env python3
"""Writes common/gpu/wgmma_forms.inc: wgmma.mma_async with 16-bit operands and fp32 sums, for the widths N that kernels use. PTX ISA: wgmma."""
from pathlib import Path

WIDTHS = [32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 256]
FORM = """
template <class T, {template}>
GPU_DEVICE void wgmma_form(float (&d)[{n}], {a_parameter}, std::uint64_t b, bool accumulate) {{
#define GPU_WGMMA(TYPE)                                                                        \\
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{flag}, 0;\\n"                              \\
                 "wgmma.mma_async.sync.aligned.m64n{width}k16.f32." TYPE "." TYPE " {{{d_names}}}, " \\
                 "{a_names}, %{b}, p, 1, 1, {majors};\\n}}"                                       \\
                 : {d_operands}                                                                \\
                 : {a_operands}, "l"(b), "r"(int(accumulate)), {major_operands})
    if constexpr (std::is_same_v<T, bf16>) {{
        GPU_WGMMA("bf16");
    }} else {{
        GPU_WGMMA("f16");
    }}
#undef GPU_WGMMA
}}
"""


def form(width, a_in_registers):
    n = width // 2
    a_count = 4 if a_in_registers else 1
    b = n + a_count
    return FORM.format(
        template="int b_major" if a_in_registers else "int a_major, int b_major",
        n=n, width=width, b=b, flag=b + 1,
        a_parameter="const std::uint32_t (&a)[4]" if a_in_registers else "std::uint64_t a",
        d_names=", ".join(f"%{i}" for i in range(n)),
        a_names="{" + ", ".join(f"%{n + i}" for i in range(4)) + "}" if a_in_registers else f"%{n}",
        majors=f"%{b + 2}" if a_in_registers else f"%{b + 2}, %{b + 3}",
        d_operands=", ".join(f'"+f"(d[{i}])' for i in range(n)),
        a_operands=", ".join(f'"r"(a[{i}])' for i in range(4)) if a_in_registers else '"l"(a)',
        major_operands='"n"(b_major)' if a_in_registers else '"n"(a_major), "n"(b_major)')


text = "// Written by common/scripts/wgmma_forms.py. clang-format off\n"
text += "".join(form(width, a_in_registers) for width in WIDTHS for a_in_registers in (False, True))
(Path(__file__).resolve().parents[1] / "gpu/wgmma_forms.inc").write_text(text)
