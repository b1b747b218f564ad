"""The fake driver, for what a device does with its memory."""

from kit.device.fake_driver import fake, fake_driver_path

__all__ = ["fake", "fake_driver_path"]
