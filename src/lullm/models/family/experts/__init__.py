"""Families with a mixture of experts in some layers or all, some with their own attention."""
