"""Support for tests: corpora, servers, and programs that run in separate processes."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The root of the repository."""
