"""Families with recurrent layers: what their files say."""
