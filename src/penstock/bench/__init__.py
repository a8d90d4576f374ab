"""Benchmarks: what penstock costs beside the designs it replaces, measured in one run on one machine.

Absolute speeds say more about the machine than about the code, so everything here is compared with contenders that
did the same work, on the same server, in the same minutes.
"""
