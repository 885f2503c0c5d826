#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "backend/backend.h"
#include "specdec/device.h"
#include "specdec/error.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

std::string field_refused(const BackendConfig& config) {
  return testing::refused_field([&] { make_backend(config); });
}

TEST(Registry, MakesTheCpuBackendAsAsked) {
  const auto backend = make_backend(
      {.device = "cpu", .cpu_isa = "generic", .num_threads = 3, .act_dtype = DType::kBF16});
  EXPECT_EQ(backend->isa(), "generic");
  EXPECT_EQ(backend->num_threads(), 3);
  EXPECT_EQ(backend->act_dtype(), DType::kBF16);
  EXPECT_EQ(backend->device_info().name, "cpu");
}

TEST(Registry, NamesBecomeDevices) {
  for (const auto& [given, name, kind] :
       std::vector<std::tuple<std::string, std::string, DeviceKind>>{
           {"cpu", "cpu", DeviceKind::kCpu},
           {"cuda", "cuda:0", DeviceKind::kGpu},
           {"cuda:12", "cuda:12", DeviceKind::kGpu},
           {"emulated", "emulated", DeviceKind::kGpu},
       }) {
    EXPECT_EQ(resolve_device(given).name, name);
    EXPECT_EQ(resolve_device(given).kind, kind);
  }
}

TEST(Registry, AutoIsTheFirstGpuThatWorksOrTheCpu) {
  const DeviceChoice chosen = resolve_device("auto");
  EXPECT_EQ(chosen.kind == DeviceKind::kCpu, !gpu_problem().empty());
  for (const DeviceInfo& device : list_devices()) {
    if (device.name == chosen.name) {
      EXPECT_TRUE(device.unusable.empty());
      break;
    }
    EXPECT_TRUE(device.name == "cpu" || !device.unusable.empty());
  }
}

TEST(Registry, TheHostTellsItsMemory) {
  const auto backend = make_backend({.num_threads = 1});
  EXPECT_EQ(backend->memory().total_bytes, backend->device_info().memory_bytes);
  EXPECT_GT(backend->memory().free_bytes, 0);
  EXPECT_LE(backend->memory().free_bytes, backend->memory().total_bytes);
}

TEST(Registry, RefusesUnknownNamesByField) {
  for (const char* device : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU"}) {
    EXPECT_EQ(field_refused({.device = device}), "device") << device;
  }
  EXPECT_EQ(field_refused({.cpu_isa = "sse9"}), "cpu_isa");
  EXPECT_EQ(field_refused({.num_threads = -1}), "num_threads");
  EXPECT_EQ(field_refused({.act_dtype = DType::kF16}), "dtype");
}

TEST(Registry, CudaSaysWhyItIsUnavailableAndWhatToDo) {
  const std::string message = testing::error_of<Unavailable>([] {
                                make_backend({.device = "cuda:99", .act_dtype = DType::kBF16});
                              }).what();
  EXPECT_NE(message.find(gpu_problem()), std::string::npos) << message;
  EXPECT_NE(message.find("device=\"cpu\""), std::string::npos) << message;
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
  const auto error =
      testing::error_of<OutOfMemory>([&] { backend->allocate(size_t{1} << 60, "a test"); });
  EXPECT_NE(std::string(error.what()).find("a test"), std::string::npos);
}

}  // namespace
}  // namespace specdec
