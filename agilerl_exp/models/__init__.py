"""WHAT to run: pydantic specs that validate on a login node in well under a second.

Must not know: torch, numpy, gymnasium, hydra, or how anything is run.
"""
