"""The fake driver, for what a worker does with a device's memory."""

from kit.device.fake_driver import fake, fake_driver_path

__all__ = ["fake", "fake_driver_path"]
