// Moves one token's keys and values within the cache. Only for files compiled once per ISA.
#pragma once

#include <cstdint>

#include "cpu/kernels/attention.h"
#include "cpu/kernels/kv_layout.h"

namespace specdec::cpu::SPECDEC_ISA {

template <class T, class Stored>
void copy_token(const KvCopyTask& task) {
  const auto locate = [&](void* base, int64_t slot) {
    return static_cast<char*>(base) +
           group_index(slot, task.kv_head, task.num_blocks, task.block_size) *
               group_bytes<Stored>(task.head_dim);
  };
  const int from = static_cast<int>(task.from % kGroupTokens);
  const int to = static_cast<int>(task.to % kGroupTokens);
  const auto move = [&](void* base, auto index) {
    char* source = locate(base, task.from);
    char* target = locate(base, task.to);
    const Stored* in =
        static_cast<const Stored*>(static_cast<void*>(source + kGroupHeaderBytes<Stored>));
    Stored* out = static_cast<Stored*>(static_cast<void*>(target + kGroupHeaderBytes<Stored>));
    for (int i = 0; i < task.head_dim; ++i) out[index(to, i)] = in[index(from, i)];
    if constexpr (kGroupHeaderBytes<Stored> > 0) {
      static_cast<float*>(static_cast<void*>(target))[to] =
          static_cast<const float*>(static_cast<void*>(source))[from];
    }
  };
  move(task.keys, [](int token, int i) { return key_index<T::kPerWord>(token, i); });
  move(task.values,
       [&](int token, int i) { return value_index<T::kPerWord>(token, i, task.head_dim); });
}

}  // namespace specdec::cpu::SPECDEC_ISA
