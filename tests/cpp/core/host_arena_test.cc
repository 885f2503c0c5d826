#include "core/host_arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "specdec/error.h"

namespace specdec {
namespace {

bool is_filled(const Buffer& buffer, uint8_t value) {
  const uint8_t* bytes = buffer.as<uint8_t>();
  for (size_t i = 0; i < buffer.size_bytes(); ++i) {
    if (bytes[i] != value) return false;
  }
  return true;
}

TEST(HostArena, BuffersAreZeroAlignedAndApart) {
  HostArena arena;
  std::vector<Buffer> buffers;
  for (const size_t size : {1, 64, 65, 3 << 20, 100, 62 << 20, 70 << 20, 7}) {
    buffers.push_back(arena.allocate(size, "a test"));
    EXPECT_EQ(buffers.back().size_bytes(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data()) % 64, 0u);
    EXPECT_TRUE(is_filled(buffers.back(), 0));
    std::memset(buffers.back().data(), static_cast<int>(buffers.size()), size);
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_TRUE(is_filled(buffers[i], static_cast<uint8_t>(i + 1))) << i;
  }
}

TEST(HostArena, SmallBuffersLieSideBySide) {
  HostArena arena;
  const Buffer first = arena.allocate(100, "a test");
  const Buffer second = arena.allocate(100, "a test");
  EXPECT_EQ(second.as<char>() - first.as<char>(), 128);
}

TEST(HostArena, BuffersOutliveIt) {
  Buffer kept;
  {
    HostArena arena;
    kept = arena.allocate(1000, "a test");
    std::memset(kept.data(), 5, kept.size_bytes());
  }
  EXPECT_TRUE(is_filled(kept, 5));
}

TEST(HostArena, RefusesWhatDoesNotFitInMemory) {
  HostArena arena;
  EXPECT_THROW(arena.allocate(size_t{1} << 60, "a test"), OutOfMemory);
  EXPECT_TRUE(arena.allocate(0, "a test").empty());
  EXPECT_EQ(arena.allocate(10, "a test").size_bytes(), 10u);
}

}  // namespace
}  // namespace specdec
