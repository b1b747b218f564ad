# ruff: noqa: E501
"""The turns of speech of published chat templates, each in a few lines of its own, by whose templates have them."""

STRUCTURES = {
    "Llama 2": "{% if messages[0].role == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + ('<<SYS>>' + "
    "system_message + '<</SYS>>' if loop.index0 == 0 and system_message != false else '') + message['content'].strip() "
    "+ ' [/INST]' }}{% elif message['content'] is string %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}",
    "Llama 3.1": "{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}"
    "{{- bos_token }}Today: {{ date_string }}\n{% if tools is not none %}{% for t in tools %}{{ t | tojson(indent=4) }}"
    "{{ '\n\n' }}{% endfor %}{% endif %}{%- for m in messages %}{%- if 'tool_calls' in m %}{%- set call = "
    'm.tool_calls[0].function %}{{ \'{"name": "\' + call.name + \'", "parameters": \' }}{{ call.arguments | tojson }}'
    "{{ '}' }}{%- elif m.role in ('tool', 'ipython') %}{{ m.content | tojson if m.content is mapping else m.content }}"
    "{%- else %}{{ '<|start|>' + m['role'] + '<|end|>\n\n' + m['content'] | trim + '<|eot|>' }}{%- endif %}{%- endfor %}",
    "Mistral": "{%- set ns = namespace(index=0, found=false) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.index = loop.index0 %}{%- set ns.found = true %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "{%- if loop.index0 == ns.index and tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{%- endif %}{%- if m.tool_calls is "
    "defined and m.tool_calls | length > 0 %}[CALLS]{% for call in m.tool_calls %}{{ call.function | tojson }}"
    "{{ ', ' if not loop.last else '' }}{% endfor %}{%- else %}{{ m['content'] | string }}{%- endif %}{%- endfor %}",
    "Gemma": "{{ bos_token }}{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else "
    "message['role'] %}{{ '<turn>' + role + '\n' + (message['content'] or '') | trim + '<end>\n' }}{% endfor %}",
    "Phi-4": "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and "
    "message['tools'] is not none %}{{ message['tools'] }}{% else %}{{ '<|' + message['role'] + '|>' + "
    "(message['content'] or '') }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% else %}"
    "{{ eos_token }}{% endif %}",
    "Qwen 3": "{%- set ns = namespace(multi=true, last=messages | length - 1) %}{%- for m in messages[::-1] %}"
    "{%- set index = (messages | length - 1) - loop.index0 %}{%- if ns.multi and m.role == 'user' and not "
    "(m.content.startswith('<tool>') and m.content.endswith('</tool>')) %}{%- set ns.multi = false %}{%- set ns.last = "
    "index %}{%- endif %}{%- endfor %}{%- for m in messages %}{%- set content = m.content if m.content is string else "
    "'' %}{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- loop.index0 > ns.last }}{{- content }}{%- endfor %}{%- if enable_thinking is defined and enable_thinking is "
    "false %}{{- '<think>\n\n</think>' }}{%- endif %}",
    "DeepSeek R1": "{% set ns = namespace(is_first=false, system='') %}{%- for m in messages %}{%- if m['role'] == "
    "'system' %}{% set ns.system = ns.system + m['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}"
    "{%- for m in messages if m.role != 'system' %}{%- if m.role == 'assistant' and m['tool_calls'] is defined %}"
    "{%- for tool in m['tool_calls'] %}{%- if not ns.is_first %}{{ '<calls>' }}{%- set ns.is_first = true -%}"
    "{%- endif %}{{ tool['type'] + '<sep>' + tool['function']['name'] }}{%- endfor %}{%- else %}{{ m['content'] }}"
    "{%- endif %}{%- endfor %}",
    "Command R": "{%- macro document(d) %}{% for key, value in d.items() %}{{ key | capitalize }}: {{ value }}\n"
    "{% endfor %}{%- endmacro %}{% for d in documents or [] %}Document: {{ loop.index0 }}\n{{ document(d) }}{% endfor %}"
    "{% for m in messages %}{% if m.content and not loop.first %}{{ m.content | upper }}{% endif %}{% endfor %}",
    "Hermes": "{%- macro kind(spec) %}{%- set basic = {'string': 'str', 'integer': 'int'} %}{%- if spec.type in basic "
    "%}{{- basic[spec.type] }}{%- elif spec.type == 'object' %}{{- 'dict[' }}{%- for name in spec.properties %}"
    "{{- name + ': ' + kind(spec.properties[name]) }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}"
    "{{- ']' }}{%- else %}{{- 'Any' }}{%- endif %}{%- endmacro %}{%- for t in tools or [] %}{{ t.function.name }}("
    "{{ kind(t.function.parameters) }}){%- endfor %}{%- for m in messages %}{{ m.content }}{%- endfor %}",
    "GLM-4": "[gMASK]<sop>{% for item in messages %}{% if item['tools'] is defined %}{{ item['tools'] | "
    "tojson(ensure_ascii=False) }}{% endif %}{% if item['content'] %}<|{{ item['role'] }}|>{{ item.get('metadata', '') "
    "}}\n{{ item['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "Granite": "{%- set controls = {'length': 'short'} | items | map('join', '=') | join(',') %}{{ controls }}"
    "{%- for m in messages %}{%- if loop.first and m.role != 'system' %}{{- 'Today: ' }}{%- endif %}{{- m.content }}"
    "{%- if loop.last and add_generation_prompt %}{{- '<|start|>' }}{%- endif %}{%- endfor %}",
    "gpt-oss": "{%- macro text(m) -%}{%- if m.content is string -%}{{ m.content }}{%- elif m.content is iterable and "
    "m.content is not mapping -%}{% for part in m.content if part.type == 'text' %}{{ part.text }}{% endfor %}"
    "{%- endif -%}{%- endmacro -%}{%- for m in messages -%}{{ text(m) | replace('weather', 'rain') }}{%- endfor -%}",
    "ChatML with marks": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "Zephyr": "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] "
    "+ eos_token }}\n{% else %}\n{{ message['content'] }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n"
    "{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "SmolLM 3": "{%- set roles = messages | map(attribute='role') | list %}{{ roles | join('/') }}{%- set calls = "
    "messages | selectattr('role', 'equalto', 'tool') | list %}{{ calls | length }}{%- for m in messages %}{%- if "
    "m.role == 'tool' %}{%- continue %}{%- endif %}{{ m.content }}{%- endfor %}",
    "Nemotron": "{% set first = messages | first %}{% set rest = messages | rejectattr('role', 'in', ['system']) | list "
    "%}{{ first.content | default('none', true) }}{% for m in rest %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{{ loop.previtem.role if loop.previtem is defined else 'start' }}{{ m.content }}{% endfor %}",
    "EXAONE": "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '[|system|][|endofturn|]\n' }}"
    "{% endif %}{{ '[|' ~ m['role'] ~ '|]' ~ m['content'] }}{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}",
    "MiniMax": "{%- for t in tools or [] %}{%- set f = t.function if t.function is defined else t %}{{- f | tojson(indent=2,"
    " sort_keys=true) }}{%- endfor %}{%- for m in messages %}{%- for c in m.tool_calls or [] %}{%- for k, v in "
    "c.function.arguments.items() %}<{{ k }}>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</{{ k }}>"
    "{%- endfor %}{%- endfor %}{%- endfor %}",
    "a clock": "{{ strftime_now('%Y')[:2] }}{% for m in messages %}{{ m.content[:3] }}{% endfor %}",
    "nothing said": "{% set ns = namespace() %}{% set ns.x = messages[-1].get('name') %}{{ ns.x }}{{ x is defined }}"
    "{{ messages[0].missing }}{{ messages[0].content.title() }}{{ '%.2f' | format(1.5) }}{{ [3, 1, 2] | sort | first }}",
}
