"""An adapter's own settings (the `adapter_config.json` of PEFT), and how a server's user names it (`module`).

`adapter`: of LoRA; `prompt_adapter`: of rows before prompts.
"""
