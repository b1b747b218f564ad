"""An adapter's own settings: the `adapter_config.json` of PEFT."""
