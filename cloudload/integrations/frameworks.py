"""The error that is raised if a training framework is not installed."""

from __future__ import annotations


def explain_missing(error: ImportError, package: str, extra: str) -> ImportError:
    """Return an error that names the extra to install, if `error` says that `package` is missing.

    Any other `error`, such as a failed import inside the framework, is returned unchanged.
    """
    if not isinstance(error, ModuleNotFoundError) or error.name != package:
        return error
    return ModuleNotFoundError(
        f"cloudload.integrations.{extra} needs {package}, which is not installed. "
        f"Run: pip install 'cloudload[{extra}]'",
        name=package,
    )
