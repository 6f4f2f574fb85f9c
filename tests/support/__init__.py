"""What tests share: corpora, servers, and programs that run in processes of their own."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The root of the repository."""
