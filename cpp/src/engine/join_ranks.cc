#include "engine/join_ranks.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "comm/shm_communicator.h"
#include "comm/socket_communicator.h"
#include "core/str_cat.h"
#include "engine/ranks.h"
#include "specdec/error.h"
#include "specdec/ranks.h"

namespace specdec {
namespace {

constexpr const char* kField = "distributed_executor_backend";

int number_of(std::string_view what, std::string_view digits) {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw InvalidArgument(kField, str_cat(what, "='", digits, "' is no number"));
  }
  return value;
}

// A number in the environment. Throws InvalidArgument where there is none.
int number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) {
    throw InvalidArgument(kField, str_cat("the launcher has not set ", variable));
  }
  return number_of(variable, text);
}

// Splits the name of a group of several hosts at its last colon into host and port.
SocketAddress address_of(const std::string& name) {
  const size_t colon = std::min(name.rfind(':'), name.size());
  return {.host = name.substr(0, colon),
          .port = number_of("the port of the ranks' group",
                            std::string_view(name).substr(std::min(colon + 1, name.size())))};
}

// Whether the configuration and the environment say that torchrun started the process.
bool has_launcher(const EngineConfig& config) {
  return config.distributed_executor_backend == DistributedExecutorBackend::kExternalLauncher &&
         std::getenv("RANK") != nullptr;
}

void check_size(const EngineConfig& config, int size) {
  if (size == num_ranks(config)) return;
  throw InvalidArgument("tensor_parallel_size",
                        str_cat(config.tensor_parallel_size, " x pipeline_parallel_size ",
                                config.pipeline_parallel_size, " are ", num_ranks(config),
                                " ranks, but the launcher started ", size, " processes"));
}

}  // namespace

int num_ranks(const EngineConfig& config) {
  return config.tensor_parallel_size * config.pipeline_parallel_size;
}

int device_of_rank(const EngineConfig& config, int rank) {
  return config.distributed_executor_backend == DistributedExecutorBackend::kRay
             ? 0
             : rank % num_ranks_of_host(config);
}

int num_ranks_of_host(const EngineConfig& config) {
  if (!has_launcher(config) || std::getenv("LOCAL_WORLD_SIZE") == nullptr) return num_ranks(config);
  return std::clamp(number_of("LOCAL_WORLD_SIZE"), 1, num_ranks(config));
}

std::chrono::milliseconds timeout_of(const EngineConfig& config) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(config.distributed_timeout_seconds));
}

LaunchedRank launched_rank(const EngineConfig& config) {
  if (!has_launcher(config)) {
    throw InvalidArgument(kField,
                          "'external_launcher' needs RANK and WORLD_SIZE in the environment: start "
                          "the program with torchrun");
  }
  const LaunchedRank launched = {.rank = number_of("RANK"), .size = number_of("WORLD_SIZE")};
  check_size(config, launched.size);
  return launched;
}

std::unique_ptr<Communicator> join_launched(const EngineConfig& config) {
  const LaunchedRank launched = launched_rank(config);
  const char* host = std::getenv("MASTER_ADDR");
  const int port = std::getenv("SPECDEC_MASTER_PORT") != nullptr ? number_of("SPECDEC_MASTER_PORT")
                                                                 : number_of("MASTER_PORT") + 1;
  return join_socket_group({.host = host != nullptr ? host : "127.0.0.1", .port = port},
                           launched.rank, launched.size, timeout_of(config));
}

RankGroup::RankGroup(int num_ranks)
    : num_ranks_(num_ranks), shm_(std::make_unique<ShmGroup>(num_ranks)), name_(shm_->name()) {}
RankGroup::RankGroup(int num_ranks, const std::string& host, int port)
    : num_ranks_(num_ranks), name_(str_cat(host, ":", port)) {}
RankGroup::~RankGroup() = default;

void RankGroup::fail(int rank, const std::string& cause) {
  if (shm_ != nullptr) shm_->fail(rank, cause);
}

std::unique_ptr<Communicator> RankGroup::join(std::chrono::milliseconds timeout) {
  if (shm_ != nullptr) return shm_->join(timeout);
  return join_socket_group(address_of(name_), 0, num_ranks_, timeout);
}

bool is_leading_rank(const EngineConfig& config) {
  config.validate();
  return config.distributed_executor_backend != DistributedExecutorBackend::kExternalLauncher ||
         launched_rank(config).rank == 0;
}

void serve_rank(const EngineConfig& config, const std::string& name, int rank) {
  config.validate();
  const auto join = [&] {
    const DistributedExecutorBackend backend = config.distributed_executor_backend;
    if (backend == DistributedExecutorBackend::kMp)
      return join_shm_group(name, rank, timeout_of(config));
    if (backend != DistributedExecutorBackend::kRay) return join_launched(config);
    return join_socket_group(address_of(name), rank, num_ranks(config), timeout_of(config));
  };
  const std::unique_ptr<Communicator> group = join();
  serve_rank(config, make_backend, *group);
}

}  // namespace specdec
