#!/usr/bin/env python3
"""Writes common/gpu/tensor_memory_forms.inc: tcgen05.ld and tcgen05.st of shape 32x32b, for every number of registers. PTX ISA: tcgen05.ld, tcgen05.st."""
from pathlib import Path

COUNTS = [1, 2, 4, 8, 16, 32, 64, 128]
FORM = """
GPU_DEVICE void tcgen05_ld{name}_form({type} (&r)[{n}], std::uint32_t address) {{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x{n}{pack}.b32 {{{ld_names}}}, [%{n}];"
                 : {outputs}
                 : "r"(address));
}}
GPU_DEVICE void tcgen05_st{un_name}_form(std::uint32_t address, const {type} (&r)[{n}]) {{
    asm volatile("tcgen05.st.sync.aligned.32x32b.x{n}{unpack}.b32 [%0], {{{st_names}}};"
                 :: "r"(address), {inputs}
                 : "memory");
}}
"""


def form(n, cpp_type, constraint, packed):
    return FORM.format(
        n=n, type=cpp_type, name="_pack_16b" if packed else "", un_name="_unpack_16b" if packed else "",
        pack=".pack::16b" if packed else "", unpack=".unpack::16b" if packed else "",
        ld_names=", ".join(f"%{i}" for i in range(n)), st_names=", ".join(f"%{i + 1}" for i in range(n)),
        outputs=", ".join(f'"={constraint}"(r[{i}])' for i in range(n)),
        inputs=", ".join(f'"{constraint}"(r[{i}])' for i in range(n)))


text = "// Written by common/scripts/tensor_memory_forms.py. clang-format off\n"
for n in COUNTS:
    text += form(n, "float", "f", False) + form(n, "std::uint32_t", "r", False) + form(n, "std::uint32_t", "r", True)
(Path(__file__).resolve().parents[1] / "gpu/tensor_memory_forms.inc").write_text(text)
