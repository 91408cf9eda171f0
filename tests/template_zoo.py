"""Chat templates of the kinds that checkpoints bring, and tokenizers that know their special tokens."""

from __future__ import annotations

from pathlib import Path

from tokenizer_zoo import byte_level_bpe, sentencepiece_bpe
from tokenizers import AddedToken, processors
from transformers import PreTrainedTokenizerFast

# BOS in the template, headers around roles, content stripped.
LLAMA3_LIKE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# No BOS at all; a system message of its own where the caller has none; the answer marked for training.
CHATML_LIKE = """\
{%- set state = namespace(system=false) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% set state.system = true %}{% endif %}
{%- endfor %}
{%- if not state.system %}
    {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
    {{- '<|im_start|>assistant\\n' }}
    {%- generation %}{{ message.content }}<|im_end|>{% endgeneration %}{{ '\\n' }}
{%- else %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Roles must alternate, the system message joins the first question, EOS after each answer.
MISTRAL_LIKE = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user and assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system is defined %}
            {{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""

# Refuses a system message; calls the assistant a model.
GEMMA_LIKE = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

TEMPLATES = {
    "Llama 3": LLAMA3_LIKE,
    "ChatML": CHATML_LIKE,
    "Mistral": MISTRAL_LIKE,
    "Gemma": GEMMA_LIKE,
    "tojson": "{{ bos_token }}{% for m in messages %}{{ m | tojson(indent=1) }}{% break %}{% endfor %}",
}
MARKERS = (
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"),
    *("[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"),
)
KINDS = {"byte-level BPE": byte_level_bpe, "SentencePiece BPE": sentencepiece_bpe}


def save_tokenizer(folder: Path, kind: str, template: str | None) -> PreTrainedTokenizerFast:
    """Write a tokenizer that puts BOS before every text, with a template, and return transformers' view."""
    backend = KINDS[kind]()
    backend.add_special_tokens([AddedToken(marker, special=True) for marker in MARKERS])
    bos_id = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos_id)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return tokenizer
