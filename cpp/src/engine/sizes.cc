#include "engine/sizes.h"

#include <algorithm>
#include <limits>

#include "core/log.h"
#include "core/str_cat.h"
#include "specdec/error.h"
#include "specdec/quantization.h"

namespace specdec {
namespace {

constexpr int64_t kDefaultCacheBytes = int64_t{4} << 30;
constexpr int64_t kMaxCacheRows = std::numeric_limits<int32_t>::max();  // tokens times KV heads

// On a GPU a step's weights cost the same for few rows as for hundreds, so more run at once; both
// are vLLM's for offline use.
constexpr int kCpuSeqs = 64;
constexpr int kCpuBatchedTokens = 512;
constexpr int kGpuSeqs = 256;
constexpr int kGpuBatchedTokens = 8192;

// GPU memory that the KV cache leaves alone, within its share: captured graphs, buffers that grow.
int64_t gpu_reserve_bytes(int64_t total_bytes) {
  return std::min(int64_t{1} << 30, total_bytes / 64);
}

std::string mebibytes(int64_t size_bytes) { return str_cat(size_bytes >> 20, " MiB"); }

void require(bool condition, const char* field, const std::string& message) {
  if (!condition) throw InvalidArgument(field, message);
}

// Bytes an open KV cache may take on the host, whose memory others use too.
int64_t host_cache_bytes(const MemoryInfo& memory) {
  return memory.free_bytes > 0 ? std::min(kDefaultCacheBytes, memory.free_bytes / 2)
                               : kDefaultCacheBytes;
}

// Bytes the KV cache takes of a GPU.
int64_t gpu_cache_bytes(const EngineConfig& config, const MemoryInfo& memory, int64_t block_bytes) {
  const auto allowed =
      static_cast<int64_t>(config.gpu_memory_utilization * static_cast<double>(memory.total_bytes));
  const int64_t in_use = memory.total_bytes - memory.free_bytes;
  const int64_t left = allowed - in_use - gpu_reserve_bytes(memory.total_bytes);
  if (left >= block_bytes) return left;
  throw OutOfMemory(str_cat(
      "no GPU memory for the KV cache: gpu_memory_utilization ", config.gpu_memory_utilization,
      " allows ", mebibytes(allowed), " of ", mebibytes(memory.total_bytes), ", and ",
      mebibytes(in_use), " are in use, by the weights, workspaces and other processes; raise ",
      "gpu_memory_utilization, lower max_num_batched_tokens, give quantization=\"int8\" or ",
      "\"int4\", or take a smaller model"));
}

int max_drafts_of(const EngineConfig& config) {
  return config.speculative.enabled() ? config.speculative.max_nodes() : 0;
}
// Of a running sequence.
int64_t sequence_bytes(const EngineConfig& config, const StateBytes& bytes) {
  return bytes.slot + 2 * max_drafts_of(config) * bytes.record;
}

// Bytes of a token's keys and values. In floating point, since nothing has compared a checkpoint's
// sizes with its weights yet.
double token_bytes(const ModelConfig& model, const KvFormat& format) {
  double elements = 0;
  for (const LayerSpec& layer : model.layers) {
    if (layer.kv_source < 0) elements += 2.0 * static_cast<double>(layer.heads.kv_size());
  }
  return elements * static_cast<double>(size_of(format.dtype));
}

}  // namespace

void fill_defaults(EngineConfig& config, DeviceKind device) {
  const bool on_gpu = device == DeviceKind::kGpu;
  if (config.max_num_seqs == 0) config.max_num_seqs = on_gpu ? kGpuSeqs : kCpuSeqs;
  if (config.max_num_batched_tokens == 0) {
    config.max_num_batched_tokens = on_gpu ? kGpuBatchedTokens : kCpuBatchedTokens;
  }
}

DType resolve_dtype(const EngineConfig& config, const ModelConfig& model, DeviceKind device) {
  const bool on_gpu = device == DeviceKind::kGpu;
  switch (config.dtype) {
    case ModelDType::kAuto:
      break;
    case ModelDType::kBFloat16:
      return DType::kBF16;
    case ModelDType::kFloat32:
      require(!on_gpu, "dtype",
              "'float32' is not available on a GPU; use 'auto', 'bfloat16' or 'float16', or "
              "device='cpu'");
      return DType::kF32;
    case ModelDType::kFloat16:
      if (on_gpu) return DType::kF16;
      log_warning(
          "dtype='float16' is not available on a CPU; running in bfloat16 (dtype='float32' rounds "
          "less)");
      return DType::kBF16;
  }
  switch (model.checkpoint_dtype) {
    case DType::kBF16:
      return DType::kBF16;
    case DType::kF16:
      if (on_gpu) return DType::kF16;
      log_warning(
          "the checkpoint is float16, which is not available on a CPU; running in bfloat16 "
          "(dtype='float32' keeps all of its precision)");
      return DType::kBF16;
    default:
      if (!on_gpu) return DType::kF32;
      log_warning(
          "the checkpoint is float32, which is not available on a GPU; running in bfloat16 "
          "(dtype='float16' rounds less where its range is enough, device='cpu' keeps float32)");
      return DType::kBF16;
  }
}

KvFormat resolve_kv_format(const EngineConfig& config, DType act_dtype) {
  return {.block_size = config.block_size,
          .dtype = config.kv_cache_dtype == KvCacheDType::kInt8 ? DType::kI8 : act_dtype};
}

int resolve_max_model_len(const EngineConfig& config, const ModelConfig& model) {
  const int longest = max_positions(model);
  if (config.max_model_len == 0) return longest;
  require(config.max_model_len <= longest, "max_model_len",
          str_cat(config.max_model_len, " is longer than the checkpoint's positions (", longest,
                  "); lower it"));
  return config.max_model_len;
}

int limit_to_cache(int max_model_len, const EngineConfig& config, DeviceKind device,
                   const ModelConfig& model, const KvFormat& format, const MemoryInfo& memory) {
  if (config.max_model_len != 0) return max_model_len;
  const double cache_bytes =
      config.kv_cache_memory_bytes > 0 ? static_cast<double>(config.kv_cache_memory_bytes)
      : device == DeviceKind::kGpu     ? static_cast<double>(memory.total_bytes)
                                       : static_cast<double>(host_cache_bytes(memory));
  const double tokens = config.num_kv_blocks > 0
                            ? static_cast<double>(config.num_kv_blocks) * config.block_size
                            : cache_bytes / token_bytes(model, format);
  const double longest = std::clamp<double>(tokens, config.block_size, kMaxCacheTokens);
  return static_cast<int>(std::min<double>(max_model_len, longest));
}

CacheSize resolve_cache_size(const EngineConfig& config, DeviceKind device, int max_model_len,
                             int64_t block_bytes, int num_kv_heads, const MemoryInfo& memory) {
  const int64_t blocks_per_sequence =
      (static_cast<int64_t>(max_model_len) + config.block_size - 1) / config.block_size;
  const char* field = "num_kv_blocks";
  int64_t num_blocks = config.num_kv_blocks;
  const bool is_asked_for = num_blocks > 0 || config.kv_cache_memory_bytes > 0;
  if (config.kv_cache_memory_bytes > 0) {
    field = "kv_cache_memory_bytes";
    num_blocks = config.kv_cache_memory_bytes / block_bytes;
    require(num_blocks > 0, field,
            str_cat(config.kv_cache_memory_bytes, " bytes do not hold one block of ",
                    config.block_size, " tokens (", block_bytes, " bytes); raise it"));
  } else if (num_blocks == 0 && device == DeviceKind::kGpu) {
    field = "gpu_memory_utilization";
    num_blocks = gpu_cache_bytes(config, memory, block_bytes) / block_bytes;
  } else if (num_blocks == 0) {
    const int64_t wanted = blocks_per_sequence * config.max_num_seqs;
    num_blocks = std::min(wanted, host_cache_bytes(memory) / block_bytes);
    if (num_blocks == 0) {
      throw OutOfMemory(str_cat("no memory for one KV block (", block_bytes,
                                " bytes): free some, or load the model in bfloat16"));
    }
  }
  if (is_asked_for && memory.free_bytes > 0) {
    const int64_t most = memory.free_bytes / block_bytes;
    const int64_t unit = config.kv_cache_memory_bytes > 0 ? block_bytes : 1;
    require(num_blocks <= most, field,
            str_cat("asks for ", mebibytes(num_blocks * block_bytes), " of KV cache, and ",
                    mebibytes(memory.free_bytes), " of memory are free: ", most * unit,
                    " is the most"));
  }
  // The null block comes on top.
  const int64_t most_tokens = std::min<int64_t>(kMaxCacheTokens, kMaxCacheRows / num_kv_heads);
  num_blocks = std::min(num_blocks, most_tokens / config.block_size - 1);

  CacheSize size{.num_blocks = static_cast<int>(num_blocks), .max_model_len = max_model_len};
  if (num_blocks < blocks_per_sequence) {
    const int held = static_cast<int>(num_blocks) * config.block_size;
    require(
        config.max_model_len == 0, field,
        str_cat("the KV cache holds ", held, " tokens, fewer than one request of max_model_len ",
                max_model_len, "; lower max_model_len to ", held, " or give ", blocks_per_sequence,
                " blocks (", blocks_per_sequence * block_bytes, " bytes)"));
    size.max_model_len = held;
  }
  return size;
}

int fit_num_seqs(const EngineConfig& config, const StateBytes& bytes, const MemoryInfo& memory) {
  const int64_t each = sequence_bytes(config, bytes);
  if (memory.free_bytes == 0 || each == 0) return config.max_num_seqs;
  return static_cast<int>(
      std::clamp<int64_t>(memory.free_bytes / 4 / each, 1, config.max_num_seqs));
}

int64_t bytes_for_states(const EngineConfig& config, DeviceKind device, const StateBytes& bytes,
                         const MemoryInfo& memory) {
  const int64_t running = config.max_num_seqs * sequence_bytes(config, bytes);
  if (memory.free_bytes == 0) return running;
  require(running < memory.free_bytes, "max_num_seqs",
          str_cat("the recurrent states of ", config.max_num_seqs, " sequences take ",
                  mebibytes(running), ", and ", mebibytes(memory.free_bytes),
                  " of memory are free; lower it"));
  const bool is_asked_for = config.num_kv_blocks > 0 || config.kv_cache_memory_bytes > 0;
  if (is_asked_for || device == DeviceKind::kCpu) return running;
  return running + (memory.free_bytes - running) / 3;
}

StateConfig resolve_states(const EngineConfig& config, const ModelConfig& model,
                           const KvFormat& format, int64_t cache_bytes, const StateBytes& bytes,
                           const MemoryInfo& memory) {
  StateConfig states = {.num_slots = config.max_num_seqs, .max_drafts = max_drafts_of(config)};
  double whole_state = 0;
  for (const LayerSpec& layer : model.layers) {
    if (layer.state.empty()) continue;
    whole_state += static_cast<double>(layer.state.tail_size() + layer.state.matrix_size());
  }
  const double interval = whole_state * sizeof(float) / token_bytes(model, format);
  states.interval = static_cast<int>(std::clamp<double>(interval, 1, kMaxCacheTokens));
  if (!config.enable_prefix_caching) return states;
  const int64_t slot_bytes = std::max<int64_t>(bytes.slot, 1);  // a stage may have none
  int64_t num_cached = cache_bytes / slot_bytes + states.num_slots;
  if (memory.free_bytes > 0) {
    const int64_t left =
        memory.free_bytes - cache_bytes - states.num_slots * sequence_bytes(config, bytes);
    num_cached = std::min(num_cached, left / 2 / slot_bytes);
  }
  states.num_cached = static_cast<int>(std::clamp<int64_t>(num_cached, 1, 1 << 20));
  return states;
}

}  // namespace specdec
