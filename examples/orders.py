"""The orders app of `plancast demo orders`; its source is ``runtime/plancast/demo/apps/orders.py``."""

from plancast.demo.apps.orders import Payment, Shipment, app, compliance, orders

__all__ = ["Payment", "Shipment", "app", "compliance", "orders"]
