"""Replies: how models write thoughts and calls, and how a request wants its reply read."""
