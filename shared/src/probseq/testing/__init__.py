"""Test suites to inherit from, for kernels and layers that follow the conventions of ``probseq``.

They need pytest, which ``probseq`` does not install. Import a suite from its own module.
"""
