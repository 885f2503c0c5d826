#include "engine/ranks.h"

#include <utility>

#include "comm/thread_communicator.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "engine/device_executor.h"
#include "engine/failure.h"
#include "engine/join_ranks.h"
#include "specdec/error.h"
#include "specdec/ranks.h"

namespace specdec {

Ranks::Ranks(std::unique_ptr<Communicator> group) : group_(std::move(group)) {}

std::unique_ptr<Ranks> Ranks::start(const EngineConfig& config, const BackendMaker& make_backend) {
  if (num_ranks(config) == 1) return nullptr;
  const DistributedExecutorBackend backend = config.distributed_executor_backend;
  if (backend == DistributedExecutorBackend::kMp || backend == DistributedExecutorBackend::kRay) {
    if (config.rank_group == nullptr) {
      throw InvalidArgument("rank_group",
                            str_cat("'", name_of(backend),
                                    "' needs the group that the other ranks' processes "
                                    "join"));
    }
    return std::unique_ptr<Ranks>(new Ranks(config.rank_group->join(timeout_of(config))));
  }
  if (backend == DistributedExecutorBackend::kExternalLauncher) {
    return std::unique_ptr<Ranks>(new Ranks(join_launched(config)));
  }
  auto groups = make_thread_communicators(num_ranks(config), timeout_of(config));
  std::unique_ptr<Ranks> ranks(new Ranks(std::move(groups[0])));
  ranks->errors_.resize(groups.size());
  for (size_t rank = 1; rank < groups.size(); ++rank) {
    ranks->threads_.emplace_back(
        [config, make_backend, group = std::move(groups[rank]), &error = ranks->errors_[rank]] {
          try {
            serve_rank(config, make_backend, *group);
          } catch (...) {  // serve_rank has told the group
            error = std::current_exception();
            log_info("rank ", group->rank(), " has ended: ", message_of(error));
          }
        });
  }
  return ranks;
}

void Ranks::lead(EngineModels& models) {
  calls_.emplace(models.coordinates(), models.backend());
  const std::vector<ModelRunner*> runners = models.runners();
  for (size_t id = 0; id < runners.size(); ++id) {
    runners[id]->set_observer(&leading_.emplace_back(*calls_, static_cast<int>(id)));
  }
}

void Ranks::stop() {
  has_stopped_ = true;
  try {
    calls_->stop();
  } catch (const std::exception& error) {  // a rank has died: the remaining ranks are told, too
    group_->abort(error.what());
  }
  calls_.reset();
}

Ranks::~Ranks() {
  if (!has_stopped_) group_->abort("the engine could not be made");
  join_threads();
}

void Ranks::join_threads() {
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void Ranks::rethrow_cause() {
  join_threads();
  for (const std::exception_ptr& error : errors_) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const RankFailure&) {  // of another's failure
    }
  }
}

void serve_rank(const EngineConfig& config, const BackendMaker& make_backend, Communicator& group) {
  EngineModels models(config, make_backend, &group);
  try {
    const auto device_step = DeviceExecutor::make_step(models, DeviceExecutorConfig::of(models));
    models.allocate_caches(device_step != nullptr ? device_step->bytes_on_demand() : 0);
    const std::vector<ModelRunner*> runners = models.runners();
    repeat_calls(models.coordinates(), models.backend(), runners, device_step.get());
  } catch (...) {
    group.abort(message_of(std::current_exception()));
    throw;
  }
}

}  // namespace specdec
