// What an engine is made of. Field names are those of the Python `Engine` arguments.
#pragma once

#include <cstdint>
#include <string>

#include "specdec/speculative_config.h"

namespace specdec {

struct EngineConfig {
  std::string model;           // directory with config.json and *.safetensors
  std::string dtype = "auto";  // "auto" (the checkpoint's), "bfloat16", "float32" (CPU only),
                               // "float16" (on a CPU bfloat16, with a warning)
  // "auto", or "dummy": made-up weights of the right shapes, always the same ones; only config.json
  // is read. Draft models have such weights, too.
  std::string load_format = "auto";
  // A JSON object whose keys replace those of config.json; empty: none. A draft model has its own.
  std::string hf_overrides;
  // Of the weights: "auto" (as the checkpoint stores them), "none" (all at dtype), "int8", "int4";
  // see quantization.h. On a CPU products with integers round their inputs to 8 bits, too.
  std::string quantization = "auto";
  // "cpu", "cuda", "cuda:N", or "auto": the first GPU this build has kernels for, else the CPU.
  std::string device = "auto";
  std::string cpu_isa = "auto";  // "auto", or one of BuildInfo::cpu_isas to force narrower kernels

  int max_model_len = 0;           // tokens (prompt + output) of one request; 0: the checkpoint's
  int max_num_seqs = 0;            // sequences that run in one step; 0: 64, on a GPU 256
  int max_num_batched_tokens = 0;  // rows of one step: prompt chunks and decodes together; 0: 512,
                                   // on a GPU 8192

  // Keys and values: "auto" (at dtype), or "int8" with a scale for each token and head.
  std::string kv_cache_dtype = "auto";
  int64_t kv_cache_memory_bytes = 0;  // KV pool size; 0: derived from num_kv_blocks or the device
  int num_kv_blocks = 0;              // KV pool size in blocks; exclusive with the above
  // Of a GPU's memory, for weights, workspaces and what is left for the KV pool, in (0, 1].
  double gpu_memory_utilization = 0.9;
  int block_size = 16;  // tokens of one KV block, a multiple of 16
  bool enable_prefix_caching = true;

  bool enforce_eager = false;  // GPU: launch every kernel by itself, without captured graphs
  // GPU: false allows faster kernels whose rows depend on their neighbours in the last bits, so
  // that a request's answer may depend on what runs beside it and on speculation.
  bool deterministic = true;

  int num_threads = 0;  // 0: one per physical core this process may run on
  uint64_t seed = 0;    // seeds requests that bring none of their own
  // What logprobs report: "raw_logprobs", "processed_logprobs" (after all processors), or the
  // logits themselves: "raw_logits", "processed_logits".
  std::string logprobs_mode = "raw_logprobs";

  SpeculativeConfig speculative;
};

// What was resolved from EngineConfig and the checkpoint once an engine is up.
struct ModelInfo {
  std::string architecture;  // as config.json names it, e.g. "LlamaForCausalLM"
  std::string dtype;
  std::string weight_format;  // "bfloat16", "int8", "int4+int8, from gguf q4_k+q6_k"
  std::string device;         // "cpu", "cuda:0"
  std::string isa;
  int num_layers = 0;
  int hidden_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;  // rows of the output head
  int max_model_len = 0;
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  int num_threads = 0;
  int num_kv_blocks = 0;
  int block_size = 0;
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;  // resident, as packed
  std::string kv_cache_dtype;
  int64_t kv_cache_bytes = 0;
};

}  // namespace specdec
