"""plancast: an actor-based runtime for agent plans.

Every public name is importable from here, and loaded when it is first used: `__init__.pyi` lists them. `__all__` has
those that apps use; what only authors of planners need is listed by `plancast.planners`.
"""

from plancast.exports import lazy_exports

_modules, __getattr__ = lazy_exports(__name__, __file__)
__all__ = sorted(name for name, module in _modules.items() if module != "plancast.planners")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
