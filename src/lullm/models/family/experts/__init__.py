"""Families with a mixture of experts in some layers or all, and attention of their own where it differs."""
