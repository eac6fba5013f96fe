"""The travel app of `plancast demo travel`; its source is ``runtime/plancast/demo/apps/travel.py``."""

from plancast.demo.apps.travel import Trip, app, flights, hotels, payments, planner

__all__ = ["Trip", "app", "flights", "hotels", "payments", "planner"]
