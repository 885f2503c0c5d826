#include "cuda/backend/staging.h"

#include <algorithm>

namespace specdec::cuda {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kAlignment = 256;

}  // namespace

Staging::Staging(Device& device, Stream& stream) : device_(device), stream_(stream) {
  for (Arena& arena : arenas_) arena.copied = device.make_event();
}

void Staging::begin_step() {
  stream_.record(*arenas_[current_].copied);
  arenas_[current_].in_flight = true;
  current_ ^= 1;
  Arena& arena = arenas_[current_];
  if (arena.in_flight) arena.copied->wait();
  arena.in_flight = false;
  arena.chunk = 0;
  arena.used = 0;
}

Staging::Bytes Staging::take(size_t size_bytes) {
  Arena& arena = arenas_[current_];
  while (arena.chunk < arena.chunks.size() &&
         arena.used + size_bytes > arena.chunks[arena.chunk].device.size_bytes()) {
    ++arena.chunk;
    arena.used = 0;
  }
  if (arena.chunk == arena.chunks.size()) {
    const size_t chunk_bytes = std::max(size_bytes, kChunkBytes);
    arena.chunks.push_back({.pinned = device_.allocate_pinned(chunk_bytes, "staging"),
                            .device = device_.allocate(chunk_bytes, "staging")});
  }
  Chunk& chunk = arena.chunks[arena.chunk];
  const Bytes bytes = {.pinned = chunk.pinned.as<char>() + arena.used,
                       .device = chunk.device.as<char>() + arena.used};
  arena.used += (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  return bytes;
}

void Staging::upload_to(void* device, const void* values, size_t size_bytes) {
  if (size_bytes == 0) return;
  char* pinned = take(size_bytes).pinned;
  std::memcpy(pinned, values, size_bytes);
  stream_.copy_to_device(device, pinned, size_bytes);
}

const void* Staging::upload_bytes(const void* values, size_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  const Bytes bytes = take(size_bytes);
  std::memcpy(bytes.pinned, values, size_bytes);
  stream_.copy_to_device(bytes.device, bytes.pinned, size_bytes);
  return bytes.device;
}

}  // namespace specdec::cuda
