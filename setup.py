"""The one part that is compiled. Where no compiler is found the install goes on without it, and search uses torch."""

from setuptools import Extension, setup

NATIVE = "src/polysem/search/engine/native"
INCLUDED = ("kernels_body", "exact_body", "product_body", "batch_body", "decide")

setup(
    ext_modules=[
        Extension(
            "polysem.search.engine.native._kernels",
            sources=[f"{NATIVE}/kernels.c"],
            depends=[f"{NATIVE}/{name}.h" for name in INCLUDED],
            extra_compile_args=["-O3", "-g0", "-std=gnu11", "-Wno-psabi"],
            optional=True,
        )
    ]
)
