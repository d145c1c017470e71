"""Widgets that only draw."""
