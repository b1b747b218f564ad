"""Hibernation as plain data: the files of workers, reports and forecasts."""
