"""Measures what each fast path of the product brings beside the plain way of doing the same."""
