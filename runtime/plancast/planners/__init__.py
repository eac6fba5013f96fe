"""Planners: what decides the next step of a plan, and what authors of planners need.

`__init__.pyi` lists the exports; each is loaded when it is first used.
"""

from plancast.exports import lazy_exports

_modules, __getattr__ = lazy_exports(__name__, __file__)
__all__ = sorted(_modules)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
