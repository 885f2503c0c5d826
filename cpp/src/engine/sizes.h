// From what the user asked for to the sizes an engine runs with.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "model/config.h"
#include "runtime/kv_cache.h"
#include "sched/state_planner.h"
#include "specdec/config.h"

namespace specdec {

// Sizes that were left open, for the device.
void fill_defaults(EngineConfig& config, DeviceKind device);

// EngineConfig::dtype to the dtype to compute in. Under "auto" what the device does not compute in
// runs in bfloat16, with a warning: float16 on a CPU, float32 on a GPU. Throws InvalidArgument for
// a dtype that was asked for.
DType resolve_dtype(const EngineConfig& config, const ModelConfig& model, DeviceKind device);

// The format of the KV cache; "auto" is the activations' dtype.
KvFormat resolve_kv_format(const EngineConfig& config, DType act_dtype);

// Tokens of the longest request: as configured, else the checkpoint's maximum. Throws
// InvalidArgument where the checkpoint cannot hold the configured length.
int resolve_max_model_len(const EngineConfig& config, const ModelConfig& model);

// Lowers `max_model_len`, where the user left it open, to the most tokens that a KV cache on the
// device could hold, so that tables over positions are not made longer than that. `memory` is the
// device's before anything is allocated.
int limit_to_cache(int max_model_len, const EngineConfig& config, DeviceKind device,
                   const ModelConfig& model, const KvFormat& format, const MemoryInfo& memory);

struct CacheSize {
  int num_blocks = 0;
  int max_model_len = 0;  // lowered to what the cache holds when the user left it open
};

// Blocks of the KV cache: as asked; else on a CPU enough for every sequence at full length within
// 4 GiB and half of the free memory, and on a GPU what gpu_memory_utilization leaves, less a
// reserve for graphs and buffers that come later. `memory` is the device's once weights and
// workspaces are there. A cache that cannot hold one request of max_model_len is refused when the
// user set max_model_len, and lowers it otherwise. `num_kv_heads` is the most that a model which
// shares the blocks has: positions times heads are counted in 32 bits.
CacheSize resolve_cache_size(const EngineConfig& config, DeviceKind device, int max_model_len,
                             int64_t block_bytes, int num_kv_heads, const MemoryInfo& memory);

// Bytes of recurrent states on a device: of one, and of a draft's record.
struct StateBytes {
  int64_t slot = 0;
  int64_t record = 0;
};

// config.max_num_seqs, lowered so far that the states of as many sequences take a quarter of the
// free memory at most.
int fit_num_seqs(const EngineConfig& config, const StateBytes& bytes, const MemoryInfo& memory);

// What the KV cache leaves to recurrent states: those of sequences and, on a GPU, unless the
// cache's size is asked for, a third of the other memory for those of cached prefixes. (On a CPU
// the cache does not take all.) Throws InvalidArgument("max_num_seqs") where the states of
// sequences do not fit.
int64_t bytes_for_states(const EngineConfig& config, DeviceKind device, const StateBytes& bytes,
                         const MemoryInfo& memory);

// States of a model with recurrent layers: one for each sequence that may run, and for cached
// prefixes as many as take the memory of the KV cache, and one a sequence, if half of what is left
// has room for them. The whole `model` says how many tokens lie between states that are kept: those
// whose keys and values take as much as a state.
StateConfig resolve_states(const EngineConfig& config, const ModelConfig& model,
                           const KvFormat& format, int64_t cache_bytes, const StateBytes& bytes,
                           const MemoryInfo& memory);

}  // namespace specdec
