"""Finding the user's app by ``MODULE:app``."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

from seriatim.core.app import App
from seriatim.core.errors import ConfigurationError


def load_app(target: str) -> App:
    """The `App` that ``MODULE:name`` names; the current folder is searched, too.

    Raises:
        ConfigurationError: the module can't be imported, or has no such app; says where it failed.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise ConfigurationError(f"{target!r}: name the app as MODULE:NAME, for example shop.orders:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        raise ConfigurationError(f"module {module_name!r} can't be imported: {_where(error)}") from error
    app = getattr(module, name, None)
    if app is None:
        apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
        raise ConfigurationError(f"module {module_name!r} has no {name!r}; its apps are: {', '.join(apps) or 'none'}")
    if not isinstance(app, App):
        raise ConfigurationError(f"{target!r} is a {type(app).__name__}, not a seriatim.App")
    return app


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename]
    place = f" (at {Path(own[-1].filename).name}:{own[-1].lineno})" if len(own) > 1 else ""
    return f"{type(error).__name__}: {error}{place}"
