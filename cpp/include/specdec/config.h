// The configuration of an engine.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "specdec/logprobs_mode.h"
#include "specdec/options.h"
#include "specdec/speculative_config.h"

namespace specdec {

class RankGroup;  // specdec/ranks.h

enum class ModelDType : uint8_t { kAuto, kBFloat16, kFloat16, kFloat32 };
template <>
inline constexpr auto kEnumNames<ModelDType> =
    std::to_array<EnumName<ModelDType>>({{ModelDType::kAuto, "auto"},
                                         {ModelDType::kBFloat16, "bfloat16"},
                                         {ModelDType::kFloat16, "float16"},
                                         {ModelDType::kFloat32, "float32"}});

enum class LoadFormat : uint8_t { kAuto, kDummy };
template <>
inline constexpr auto kEnumNames<LoadFormat> = std::to_array<EnumName<LoadFormat>>(
    {{LoadFormat::kAuto, "auto"}, {LoadFormat::kDummy, "dummy"}});

enum class SchedulingPolicy : uint8_t { kFcfs, kPriority };
template <>
inline constexpr auto kEnumNames<SchedulingPolicy> = std::to_array<EnumName<SchedulingPolicy>>(
    {{SchedulingPolicy::kFcfs, "fcfs"}, {SchedulingPolicy::kPriority, "priority"}});

enum class KvCacheDType : uint8_t { kAuto, kInt8 };
template <>
inline constexpr auto kEnumNames<KvCacheDType> = std::to_array<EnumName<KvCacheDType>>(
    {{KvCacheDType::kAuto, "auto"}, {KvCacheDType::kInt8, "int8"}});

enum class DistributedExecutorBackend : uint8_t { kThreads, kMp, kRay, kExternalLauncher };
template <>
inline constexpr auto kEnumNames<DistributedExecutorBackend> =
    std::to_array<EnumName<DistributedExecutorBackend>>(
        {{DistributedExecutorBackend::kThreads, "threads"},
         {DistributedExecutorBackend::kMp, "mp"},
         {DistributedExecutorBackend::kRay, "ray"},
         {DistributedExecutorBackend::kExternalLauncher, "external_launcher"}});

struct EngineConfig {
  std::string model;  // directory with config.json and *.safetensors
  // kEngineOptions, below, says what members without a comment mean and which values they take.
  ModelDType dtype = ModelDType::kAuto;
  LoadFormat load_format = LoadFormat::kAuto;
  // A JSON object whose keys replace those of config.json; empty: none. A draft model has its own
  // overrides.
  std::string hf_overrides;
  std::string quantization = "auto";
  std::string device = "auto";
  std::string cpu_isa = "auto";
  int max_model_len = 0;
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  SchedulingPolicy scheduling_policy = SchedulingPolicy::kFcfs;
  KvCacheDType kv_cache_dtype = KvCacheDType::kAuto;
  int64_t kv_cache_memory_bytes = 0;
  int num_kv_blocks = 0;
  double gpu_memory_utilization = 0.9;
  int block_size = 16;
  bool enable_prefix_caching = true;
  bool enforce_eager = false;
  bool deterministic = true;
  int num_threads = 0;
  uint64_t seed = 0;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
  DistributedExecutorBackend distributed_executor_backend = DistributedExecutorBackend::kThreads;
  double distributed_timeout_seconds = 60.0;
  // States that every completion returns once it has finished (CompletionOutput::tapped_states):
  // the residual stream as each of these layers reads it, the number of layers standing for the
  // last one's output; then, with tap_final_hidden, what the head reads.
  std::vector<int> tapped_layers;
  bool tap_final_hidden = false;
  SpeculativeConfig speculative;
  // With distributed_executor_backend "mp" and "ray": the group that the processes of the other
  // ranks have joined or will join.
  std::shared_ptr<RankGroup> rank_group;

  // Throws InvalidArgument naming the first field that is out of range.
  void validate() const;
};

inline constexpr int kMaxTensorParallel = 8;  // as many as sums over the inputs have slices
inline constexpr int kMaxPipelineParallel = 64;
inline constexpr int kMaxCacheTokens = 1 << 24;  // the most tokens that a KV cache holds

inline constexpr std::tuple kEngineOptions = {
    option(
        &EngineConfig::dtype,
        {.name = "dtype",
         .help = "\"auto\" (the checkpoint's), \"bfloat16\", \"float32\" (on a CPU) or "
                 "\"float16\" (on a CPU bfloat16, with a warning)",
         .details = "\"half\" is float16. \"auto\" is bfloat16 where the device does not have the "
                    "checkpoint's."}),
    option(&EngineConfig::load_format,
           {.name = "load_format",
            .help = "\"auto\", or \"dummy\": random weights of the right shapes, always the same",
            .details = "Only config.json and the tokenizer are read, of a draft model, too. For "
                       "measuring."}),
    option(
        &EngineConfig::quantization,
        {.name = "quantization",
         .help = "how weights are held: \"auto\" (as stored), \"none\" (at dtype), \"int8\", "
                 "\"int4\", or \"fp8\" on a GPU",
         .details = "\"auto\" keeps the codes of a quantised checkpoint (GGUF, GPTQ, AWQ, "
                    "compressed-tensors and the others of docs/quantization.md); `specdec-native "
                    "info MODEL` says what each kind of matrix becomes. \"int8\": a scale for each "
                    "output. \"int4\": a scale for every 32 inputs of an output; embedding and "
                    "head in 8 bits, grouped likewise. \"fp8\": 8-bit floats, a scale for each "
                    "output; embedding and head stay at dtype. Integers stored in as few bits "
                    "stay as they are. On a CPU products with integers round their inputs to 8 "
                    "bits, a scale for every 32 of a row (of 16 where the weights' groups are of "
                    "16)."}),
    option(
        &EngineConfig::device,
        {.name = "device",
         .help = "\"cpu\", \"cuda\" (the first GPU), \"cuda:N\", or \"auto\": the first GPU this "
                 "build has kernels for, else the CPU",
         .details = "model_info().device is what was chosen."}),
    option(&EngineConfig::cpu_isa,
           {.name = "cpu_isa",
            .help = "\"auto\", or a narrower instruction set of `specdec-native info`"}),
    option(&EngineConfig::max_model_len, {.name = "max_model_len",
                                          .help = "tokens of prompt and output together",
                                          .range = at_least(1),
                                          .zero = "the checkpoint's"}),
    option(
        &EngineConfig::max_num_seqs,
        {.name = "max_num_seqs",
         .help = "sequences that run in one step",
         .details = "A step reads the same weights for one row and for hundreds, so more of them "
                    "share it on a GPU.",
         .range = at_least(1),
         .zero = "64, on a GPU 256"}),
    option(&EngineConfig::max_num_batched_tokens,
           {.name = "max_num_batched_tokens",
            .help = "tokens computed in one step; longer prompts are cut into chunks",
            .range = between(1, kMaxCacheTokens),
            .zero = "512, on a GPU 8192"}),
    option(
        &EngineConfig::scheduling_policy,
        {.name = "scheduling_policy",
         .help =
             "which requests run first: \"fcfs\", those that came first, or \"priority\", those "
             "of the lowest priority value, then those that came first",
         .details = "The same order in reverse says who is preempted where memory is short. With "
                    "\"fcfs\" a request has no priority but 0."}),
    option(
        &EngineConfig::kv_cache_dtype,
        {.name = "kv_cache_dtype",
         .help = "keys and values: \"auto\" (dtype), or \"int8\" with a scale for each token and "
                 "head",
         .details = "\"int8\" takes about half the memory of bfloat16."}),
    option(&EngineConfig::kv_cache_memory_bytes,
           {.name = "kv_cache_memory_bytes",
            .help = "size of the KV cache",
            .range = at_least(1),
            .zero = "what num_kv_blocks or the device gives"}),
    option(&EngineConfig::num_kv_blocks,
           {.name = "num_kv_blocks",
            .help = "the same in blocks; exclusive with kv_cache_memory_bytes",
            .range = at_least(1),
            .zero = "what kv_cache_memory_bytes or the device gives"}),
    option(&EngineConfig::gpu_memory_utilization,
           {.name = "gpu_memory_utilization",
            .help = "share of a GPU's memory to use",
            .details =
                "What weights, workspaces and other processes leave of it is the KV cache, a "
                "draft model's part included; num_kv_blocks or kv_cache_memory_bytes set its size "
                "themselves.",
            .range = above(0, 1)}),
    option(&EngineConfig::block_size, {.name = "block_size",
                                       .help = "tokens of one KV block, a multiple of 16",
                                       .range = between(16, 256)}),
    option(&EngineConfig::enable_prefix_caching,
           {.name = "enable_prefix_caching",
            .help = "whether equal beginnings of prompts are computed once"}),
    option(&EngineConfig::enforce_eager,
           {.name = "enforce_eager",
            .help = "on a GPU, launch kernels one by one, without captured graphs"}),
    option(
        &EngineConfig::deterministic,
        {.name = "deterministic",
         .help = "on a GPU, False allows faster kernels that round differently beside other "
                 "requests and drafts",
         .details = "Answers may then depend on both. Products of many rows run on the fastest of "
                    "this build's kernels, CUTLASS and cuBLASLt, each timed at the first product "
                    "of its shape."}),
    option(&EngineConfig::num_threads,
           {.name = "num_threads",
            .help = "threads on the CPU, of each rank",
            .range = between(1, 1024),
            .zero = "one per physical core that this process may run on, shared by its ranks"}),
    option(&EngineConfig::seed, {.name = "seed", .help = "seeds requests that bring no seed"}),
    option(&EngineConfig::logprobs_mode,
           {.name = "logprobs_mode",
            .help = "what logprobs and prompt_logprobs hold: \"raw_logprobs\", "
                    "\"processed_logprobs\" (after all processors), \"raw_logits\" or "
                    "\"processed_logits\"",
            .details = "Logits come instead of their log-softmax."}),
    option(&EngineConfig::tensor_parallel_size,
           {.name = "tensor_parallel_size",
            .help = "devices that share every layer",
            .details = "Each holds a part of the attention heads, of the MLPs and of the "
                       "vocabulary. Answers do not depend on their number. The CPU counts as "
                       "several devices, of num_threads threads each; GPUs are those from device "
                       "on.",
            .range = between(1, kMaxTensorParallel)}),
    option(&EngineConfig::pipeline_parallel_size,
           {.name = "pipeline_parallel_size",
            .help = "groups of tensor_parallel_size devices that hold some of the layers each",
            .range = between(1, kMaxPipelineParallel)}),
    option(&EngineConfig::distributed_executor_backend,
           {.name = "distributed_executor_backend",
            .help = "where the ranks of several devices run: \"threads\" of this process, \"mp\" "
                    "(processes that it starts), \"ray\" (actors of Ray) or "
                    "\"external_launcher\" (of torchrun)"}),
    option(&EngineConfig::distributed_timeout_seconds,
           {.name = "distributed_timeout_seconds",
            .help = "how long a rank waits for the others before the engine fails with RankFailure",
            .range = between(0.1, 86400)}),
};

// Values resolved from EngineConfig and the checkpoint once an engine is running.
struct ModelInfo {
  std::string architecture;  // as config.json names it, e.g. "LlamaForCausalLM"
  std::string dtype;
  std::string weight_format;  // "bfloat16", "int8", "int4+int8, from gguf q4_k+q6_k"
  std::string device;         // "cpu", "cuda:0"
  std::string isa;
  int num_layers = 0;
  int hidden_size = 0;
  // Of the first layer; other layers may have other heads.
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;  // rows of the output head
  int max_model_len = 0;
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  int num_speculative_tokens = 0;  // the longest draft; 0: the engine does not speculate
  bool has_priorities = false;     // of requests: scheduling_policy is "priority"
  int num_threads = 0;
  int num_kv_blocks = 0;
  int block_size = 0;
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;  // resident, as packed
  std::string kv_cache_dtype;
  int64_t kv_cache_bytes = 0;
  int64_t state_bytes = 0;  // of recurrent layers' states; 0: the model has none
};

}  // namespace specdec
