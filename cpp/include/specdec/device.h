// The devices this build can run on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec {

struct DeviceInfo {
  std::string name;   // what to pass as EngineConfig::device: "cpu", "cuda:0"
  std::string model;  // marketing name as the machine reports it
  int64_t memory_bytes = 0;
  int num_threads = 0;  // CPU: threads used by default; GPU: multiprocessors
  std::string isa;      // CPU: widest kernel set this machine runs; GPU: compute capability
  // Why this build cannot run on it; empty when it can.
  std::string unusable = {};
};

// How the library was built, for bug reports and `specdec-native info`.
struct BuildInfo {
  std::string version;
  std::string compiler;
  std::string build_type;
  bool has_cuda = false;
  std::string cuda_note;              // why CUDA is absent, or the architectures it was built for
  bool has_emulated_device = false;   // "emulated": GPU kernels on the CPU, for development
  std::vector<std::string> cpu_isas;  // kernel sets compiled in, narrowest first
};

// The CPU, then all GPUs the driver shows.
std::vector<DeviceInfo> list_devices();
// Why no GPU can be used, and what to do about it; empty when one can.
std::string gpu_problem();
BuildInfo build_info();
// Bytes per second that `num_threads` threads (0: as many as an engine uses) read from a buffer of
// `num_bytes` in this machine's memory or caches: the fastest of as many passes as `seconds` allow,
// at least one.
double read_bandwidth(int64_t num_bytes, int num_threads = 0, double seconds = 0.2);

}  // namespace specdec
