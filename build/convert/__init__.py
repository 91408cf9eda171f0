"""One checkpoint to TensorRT-LLM or Hugging Face format, streaming."""
