"""The other models of NVIDIA's recipe, as data: what stands around the engines there.

From `triton_backend/all_models/inflight_batcher_llm/{preprocessing,postprocessing}`
of TensorRT-LLM 1.2. Only the tensors of text are held: those for images need another model.
"""

from __future__ import annotations

from trtspec.triton_repo.contract import Tensor
from trtspec.triton_repo.leaf_parameters import Parameter

PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"

PREPROCESSING_INPUTS = (
    Tensor("QUERY", "STRING", optional=False),
    Tensor("DECODER_QUERY", "STRING"),
    Tensor("REQUEST_OUTPUT_LEN", "INT32", optional=False),
    Tensor("BAD_WORDS_DICT", "STRING", (-1,)),
    Tensor("STOP_WORDS_DICT", "STRING", (-1,)),
    Tensor("EMBEDDING_BIAS_WORDS", "STRING", (-1,)),
    Tensor("EMBEDDING_BIAS_WEIGHTS", "FP32", (-1,)),
    Tensor("END_ID", "INT32"),
    Tensor("PAD_ID", "INT32"),
    Tensor("PROMPT_TABLE_EXTRA_ID", "UINT64"),
)
PREPROCESSING_OUTPUTS = (
    Tensor("INPUT_ID", "INT32", (-1,)),
    Tensor("REQUEST_INPUT_LEN", "INT32"),
    Tensor("DECODER_INPUT_ID", "INT32", (-1,)),
    Tensor("REQUEST_DECODER_INPUT_LEN", "INT32"),
    Tensor("BAD_WORDS_IDS", "INT32", (2, -1)),
    Tensor("STOP_WORDS_IDS", "INT32", (2, -1)),
    Tensor("EMBEDDING_BIAS", "FP32", (-1,)),
    Tensor("REQUEST_OUTPUT_LEN", "INT32", (-1,)),
    Tensor("OUT_END_ID", "INT32"),
    Tensor("OUT_PAD_ID", "INT32"),
    Tensor("OUT_PROMPT_TABLE_EXTRA_IDS", "UINT64", (-1,)),
)
POSTPROCESSING_INPUTS = (
    Tensor("TOKENS_BATCH", "INT32", (-1, -1), optional=False),
    Tensor("SEQUENCE_LENGTH", "INT32", (-1,), optional=False),
)
POSTPROCESSING_OUTPUTS = (Tensor("OUTPUT", "STRING", (-1,)),)

PREPROCESSING_PARAMETERS = (
    Parameter("tokenizer_dir", "path", required=True),
    Parameter("add_special_tokens"),
    Parameter("multimodal_model_path", "path", present=True),
    Parameter("gpt_model_path", "path"),
    Parameter("max_num_images"),
    Parameter("hf_model_path", "path"),
)
POSTPROCESSING_PARAMETERS = (
    Parameter("tokenizer_dir", "path", required=True),
    Parameter("skip_special_tokens"),
)
