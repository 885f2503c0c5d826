#include <gtest/gtest.h>

#include "backend/backend.h"
#include "specdec/device.h"
#include "specdec/error.h"

namespace specdec {
namespace {

std::string field_refused(const BackendConfig& config) {
  try {
    make_backend(config);
  } catch (const InvalidArgument& error) {
    return error.field();
  }
  return "none";
}

TEST(Registry, MakesTheCpuBackendAsAsked) {
  const auto backend = make_backend(
      {.device = "cpu", .cpu_isa = "generic", .num_threads = 3, .act_dtype = DType::kBF16});
  EXPECT_EQ(backend->isa(), "generic");
  EXPECT_EQ(backend->num_threads(), 3);
  EXPECT_EQ(backend->act_dtype(), DType::kBF16);
  EXPECT_EQ(backend->device_info().name, "cpu");
}

TEST(Registry, AutoIsTheCpu) { EXPECT_EQ(make_backend({})->device_info().name, "cpu"); }

TEST(Registry, RefusesUnknownNamesByField) {
  for (const char* device : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU"}) {
    EXPECT_EQ(field_refused({.device = device}), "device") << device;
  }
  EXPECT_EQ(field_refused({.cpu_isa = "sse9"}), "cpu_isa");
  EXPECT_EQ(field_refused({.num_threads = -1}), "num_threads");
  EXPECT_EQ(field_refused({.act_dtype = DType::kF16}), "dtype");
}

TEST(Registry, CudaSaysWhyItIsUnavailableAndWhatToDo) {
  for (const char* device : {"cuda", "cuda:1"}) {
    try {
      make_backend({.device = device});
      FAIL() << device;
    } catch (const Unavailable& error) {
      EXPECT_NE(std::string(error.what()).find("device=\"cpu\""), std::string::npos);
    }
  }
}

TEST(Registry, ListsTheHostFirst) {
  const std::vector<DeviceInfo> devices = list_devices();
  ASSERT_FALSE(devices.empty());
  EXPECT_EQ(devices[0].name, "cpu");
  EXPECT_FALSE(devices[0].model.empty());
  EXPECT_GT(devices[0].memory_bytes, 0);
  EXPECT_GE(devices[0].num_threads, 1);
}

TEST(Registry, BuildInfoNamesTheKernelSets) {
  const BuildInfo info = build_info();
  EXPECT_FALSE(info.version.empty());
  EXPECT_FALSE(info.compiler.empty());
  EXPECT_FALSE(info.cuda_note.empty());
  ASSERT_FALSE(info.cpu_isas.empty());
  EXPECT_EQ(info.cpu_isas[0], "generic");
}

TEST(Registry, AllocationsAreZeroedAndNamedWhenTheyFail) {
  const auto backend = make_backend({.device = "cpu", .num_threads = 1});
  const Buffer buffer = backend->allocate(100000, "a test");
  for (size_t i = 0; i < buffer.size_bytes(); ++i) ASSERT_EQ(buffer.as<uint8_t>()[i], 0);
  try {
    backend->allocate(size_t{1} << 60, "a test");
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("a test"), std::string::npos);
  }
}

}  // namespace
}  // namespace specdec
