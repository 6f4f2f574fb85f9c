"""The error that is raised if a training framework is not installed."""

from __future__ import annotations


def explain_missing(error: ImportError, package: str, extra: str) -> ImportError:
    """Return an error that names the package to install, if `error` says that it is missing.

    Any other `error`, such as a failed import inside the framework, is returned unchanged.
    """
    if not isinstance(error, ModuleNotFoundError) or error.name != package:
        return error
    return ModuleNotFoundError(
        f"cloudload.integrations.{extra} needs {package}, which is not installed. "
        f"Run: pip install {'mosaicml' if package == 'composer' else package}",
        name=package,
    )
