#include "engine/join_ranks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <span>
#include <string_view>

#include "comm/mpi_communicator.h"
#include "comm/shm_communicator.h"
#include "comm/socket_communicator.h"
#include "core/str_cat.h"
#include "engine/ranks.h"
#include "specdec/error.h"
#include "specdec/ranks.h"

namespace specdec {
namespace {

constexpr const char* kField = "distributed_executor_backend";

// What launchers tell a process: its rank and the number of all.
struct LauncherVariables {
  const char* rank;
  const char* size;
  const char* size_of_host;
};
constexpr std::array kOfTorchrun = {LauncherVariables{"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}};
constexpr std::array kOfMpirun = {
    LauncherVariables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    LauncherVariables{"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"}};

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

// Of the name of a group of several hosts: what is before its last colon, and the port.
SocketAddress address_of(const std::string& name) {
  const size_t colon = std::min(name.rfind(':'), name.size());
  return {.host = name.substr(0, colon),
          .port = number_of("the port of the ranks' group",
                            std::string_view(name).substr(std::min(colon + 1, name.size())))};
}

// Those that may have started the process, of a configuration that wants one.
std::span<const LauncherVariables> launchers_of(const EngineConfig& config) {
  if (config.distributed_executor_backend == "mpi") return kOfMpirun;
  if (config.distributed_executor_backend == "external_launcher") return kOfTorchrun;
  return {};
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
  return config.distributed_executor_backend == "ray" ? 0 : rank % num_ranks_of_host(config);
}

int num_ranks_of_host(const EngineConfig& config) {
  for (const LauncherVariables& variables : launchers_of(config)) {
    if (std::getenv(variables.size_of_host) != nullptr) {
      return std::clamp(number_of(variables.size_of_host), 1, num_ranks(config));
    }
  }
  return num_ranks(config);
}

std::chrono::milliseconds timeout_of(const EngineConfig& config) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(config.distributed_timeout_seconds));
}

LaunchedRank launched_rank(const EngineConfig& config) {
  for (const LauncherVariables& variables : launchers_of(config)) {
    if (std::getenv(variables.rank) == nullptr) continue;
    const LaunchedRank launched = {.rank = number_of(variables.rank),
                                   .size = number_of(variables.size)};
    check_size(config, launched.size);
    return launched;
  }
  throw InvalidArgument(kField, config.distributed_executor_backend == "mpi"
                                    ? "'mpi' needs a process that mpirun has started"
                                    : "'external_launcher' needs RANK and WORLD_SIZE in the "
                                      "environment: start the program with torchrun");
}

std::unique_ptr<Communicator> join_launched(const EngineConfig& config) {
  const LaunchedRank launched = launched_rank(config);
  if (config.distributed_executor_backend == "mpi") return join_mpi_group(timeout_of(config));
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
  const std::string& backend = config.distributed_executor_backend;
  return (backend != "external_launcher" && backend != "mpi") || launched_rank(config).rank == 0;
}

void serve_rank(const EngineConfig& config, const std::string& name, int rank) {
  config.validate();
  const auto join = [&] {
    const std::string& backend = config.distributed_executor_backend;
    if (backend == "mp") return join_shm_group(name, rank, timeout_of(config));
    if (backend != "ray") return join_launched(config);
    return join_socket_group(address_of(name), rank, num_ranks(config), timeout_of(config));
  };
  const std::unique_ptr<Communicator> group = join();
  serve_rank(config, make_backend, *group);
}

}  // namespace specdec
