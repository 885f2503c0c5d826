#include "engine/ranks.h"

#include <chrono>
#include <utility>

#include "comm/thread_communicator.h"
#include "core/log.h"
#include "specdec/error.h"

namespace specdec {

Ranks::Ranks(std::unique_ptr<Communicator> group) : group_(std::move(group)), calls_(*group_) {}

std::unique_ptr<Ranks> Ranks::start(const EngineConfig& config, const BackendMaker& make_backend) {
  const int size = config.tensor_parallel_size * config.pipeline_parallel_size;
  if (size == 1) return nullptr;
  const std::chrono::duration<double> timeout(config.distributed_timeout_seconds);
  auto groups = make_thread_communicators(
      size, std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
  std::unique_ptr<Ranks> ranks(new Ranks(std::move(groups[0])));
  for (size_t rank = 1; rank < groups.size(); ++rank) {
    ranks->threads_.emplace_back([config, make_backend, group = std::move(groups[rank])] {
      try {
        serve_rank(config, make_backend, *group);
      } catch (const std::exception& error) {
        // serve_rank has told the group.
        log_info("rank ", group->rank(), " has ended: ", error.what());
      }
    });
  }
  return ranks;
}

void Ranks::lead(EngineModels& models) {
  const std::vector<ModelRunner*> runners = models.runners();
  for (size_t id = 0; id < runners.size(); ++id) runners[id]->lead(calls_, static_cast<int>(id));
  leads_ = true;
}

Ranks::~Ranks() {
  try {
    if (leads_) {
      calls_.stop();
    } else {
      group_->abort("the engine could not be made");
    }
  } catch (const std::exception& error) {  // a rank is gone: those that are left are told, too
    group_->abort(error.what());
  }
  for (std::thread& thread : threads_) thread.join();
}

void serve_rank(const EngineConfig& config, const BackendMaker& make_backend, Communicator& group) {
  try {
    EngineModels models(config, make_backend, &group);
    models.allocate_caches();
    const std::vector<ModelRunner*> runners = models.runners();
    repeat_calls(group, models.backend(), runners);
  } catch (const std::exception& error) {
    group.abort(error.what());
    throw;
  }
}

}  // namespace specdec
