# %% [markdown]
# A notebook whose model sleeps while nobody asks. Editors show these marks as cells; as a script it runs to the end.

# %%
import sys

from lullm import LLM, SamplingParams

llm = LLM(sys.argv[1] if len(sys.argv) > 1 else "demo", enable_sleep_mode=True)
params = SamplingParams(temperature=0, max_tokens=30)
print(llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].text)

# %%
# What would a sleep bring? This changes nothing.
forecast = llm.explain_sleep(level=1)
print(f"frees {forecast.frees_bytes / 2**20:.0f} MiB; waking takes {forecast.wake_seconds:.2f} s")

# %%
# Time to read the paper. The memory is the machine's again.
report = llm.sleep(level=1)
print(f"{report.freed_bytes / 2**20:.0f} MiB were released; the engine is {llm.sleep_state}")

# %%
# Back again: the weights are compared with their checksums, and the cached prefix is still there.
llm.wake_up()
[output] = llm.generate("Once upon a time", params, use_tqdm=False)
print(output.outputs[0].text)

# %%
llm.shutdown()
