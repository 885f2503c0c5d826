#include "cuda/backend/rank_exchange.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>

#include "core/byte_message.h"
#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "cuda/backend/nccl.h"
#include "specdec/error.h"

namespace specdec::cuda {
namespace {

// The host's value of PeerLinks::missing: it names no rank.
constexpr uint32_t kGone = ~uint32_t{0};
// Sums of at least so many elements, over more than two ranks, are faster in two shots: computed
// from the latency and the rate of NVLink, not measured.
constexpr int64_t kTwoShotElements = int64_t{1} << 17;
constexpr std::chrono::milliseconds kBetweenLooks(10);

// All ranks' messages, in order of ranks.
std::vector<std::vector<std::byte>> exchange_messages(Communicator& ranks,
                                                      std::span<const std::byte> message) {
  std::ranges::copy(message, ranks.part(message.size()));
  std::vector<std::vector<std::byte>> messages;
  for (const std::span<const std::byte> part : ranks.exchange(message.size())) {
    messages.emplace_back(part.begin(), part.end());
  }
  return messages;
}

// Returns true if no rank has an obstacle. Else `obstacle` becomes the first rank's that has one.
bool agree(Communicator& ranks, std::string& obstacle) {
  const auto* text = reinterpret_cast<const std::byte*>(obstacle.data());
  const auto obstacles = exchange_messages(ranks, {text, obstacle.size()});
  const auto first =
      std::ranges::find_if(obstacles, [](const auto& each) { return !each.empty(); });
  if (first == obstacles.end()) return true;
  obstacle.assign(reinterpret_cast<const char*>(first->data()), first->size());
  return false;
}

}  // namespace

RankExchange::RankExchange(Device& device, RehearsalStream& stream, const PeerKernels& kernels)
    : device_(device),
      stream_(stream),
      kernels_(kernels),
      own_(device, stream, "parts of this rank"),
      all_(device, stream, "heads of all ranks"),
      parts_(device, stream, "parts of all ranks") {}

// ---- links

RankExchange::Group& RankExchange::group_of(Communicator& ranks) {
  const auto [entry, is_new] = groups_.try_emplace(&ranks);
  if (is_new) link(ranks, entry->second);
  return entry->second;
}

// All ranks call this at their first exchange.
void RankExchange::link(Communicator& ranks, Group& group) {
  SPECDEC_CHECK(!stream_.is_capturing());
  SPECDEC_CHECK_LE(ranks.size(), kMaxPeers);
  PeerLinks& links = group.links;
  links.rank = ranks.rank();
  links.size = ranks.size();
  const std::string no_mailboxes = open_mailboxes(ranks, group);
  if (no_mailboxes.empty()) {
    start_watch();
    return;
  }
  group.others.clear();
  group.mailbox = nullptr;
  std::ranges::fill(links.mailboxes, nullptr);
  const std::string no_nccl = join_nccl(ranks, group);
  if (no_nccl.empty()) {
    start_watch();
    if (ranks.rank() == 0) log_info("ranks exchange by NCCL: ", no_mailboxes);
    return;
  }
  group.copies = make_host_copies(device_, stream_, ranks);
  if (ranks.rank() == 0) {
    log_info("ranks exchange over the host, and steps are not recorded: ", no_mailboxes,
             "; NCCL: ", no_nccl);
  }
}

std::string RankExchange::join_nccl(Communicator& ranks, Group& group) {
  std::string obstacle = device_.has_libraries() ? "" : "not for this device";
  NcclLibrary library;
  if (obstacle.empty()) {
    library = open_nccl();
    obstacle = library.problem;
  }
  if (!agree(ranks, obstacle)) return obstacle;
  try {
    group.copies = make_nccl_copies(library.api, stream_, ranks);
  } catch (const DeviceError& error) {
    obstacle = error.what();
  }
  if (!agree(ranks, obstacle)) group.copies = nullptr;
  return obstacle;
}

std::string RankExchange::open_mailboxes(Communicator& ranks, Group& group) {
  PeerLinks& links = group.links;
  const int num_blocks = std::min(kPeerBlocks, device_.properties().num_multiprocessors);
  Device::SharedPeerMemory own;
  std::string obstacle;
  try {
    own = device_.share_peer_memory(static_cast<size_t>(mailbox_bytes(links.size)),
                                    "mailbox of a rank");
  } catch (const Unavailable& error) {
    obstacle = error.what();
  }
  std::vector<std::byte> offer;
  MessageWriter writer(offer);
  writer.put(num_blocks);
  writer.put(own.handle.size());
  writer.put_all(std::span<const std::byte>(own.handle));
  const auto offers = exchange_messages(ranks, offer);
  links.num_blocks = num_blocks;
  group.mailbox = own.memory;
  group.others.resize(offers.size());
  for (int rank = 0; rank < links.size && obstacle.empty(); ++rank) {
    MessageReader reader(offers[rank]);
    links.num_blocks = std::min(links.num_blocks, reader.get<int>());
    try {
      const auto handle = reader.get_all<std::byte>(reader.get<size_t>());
      if (handle.empty()) break;  // that rank reports its obstacle itself
      if (rank == links.rank) {
        group.others[rank] = own.memory;
      } else {
        group.others[rank] = device_.open_peer_memory(handle);
        links.shares_device |= device_.is_on_this_device(handle);
      }
      links.mailboxes[rank] = group.others[rank]->data();
    } catch (const Unavailable& error) {
      obstacle = error.what();
    }
  }
  if (!agree(ranks, obstacle)) return obstacle;
  group.rounds = device_.allocate(kPeerBlocks * sizeof(uint32_t), "rounds of exchanges");
  group.missing = device_.allocate_pinned(sizeof(uint32_t), "ranks that are missing");
  links.rounds = group.rounds.as<uint32_t>();
  links.missing = group.missing.as<uint32_t>();
  links.timeout = static_cast<uint64_t>(std::chrono::nanoseconds(ranks.timeout()).count());
  return {};
}

PeerLinks RankExchange::links_for(Communicator& ranks, const float* own,
                                  std::span<const int64_t> counts) {
  Group& group = group_of(ranks);
  if (group.copies == nullptr) return group.links;
  const int64_t num_floats = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  float* parts = parts_.get<float>(static_cast<size_t>(num_floats));
  group.copies->gather(own, counts, parts);
  PeerLinks links = group.links;
  for (int rank = 0; rank < links.size; ++rank) {
    links.parts[rank] = parts;
    parts += counts[rank];
  }
  return links;
}

bool RankExchange::can_be_recorded() const {
  return std::ranges::all_of(groups_, [](const auto& entry) {
    return entry.second.copies == nullptr || entry.second.copies->can_be_recorded();
  });
}

void RankExchange::check() const {
  for (const auto& [ranks, group] : groups_) {
    if (group.links.missing == nullptr) continue;
    const uint32_t missing = *static_cast<volatile const uint32_t*>(group.links.missing);
    if (missing == 0) continue;
    ranks->check_ranks();  // throws if the communicator knows the reason
    const std::string cause =
        str_cat("did not answer within ", ranks->timeout().count() / 1000.0, " s");
    ranks->abort(str_cat("rank ", missing - 1, " ", cause));
    throw RankFailure(static_cast<int>(missing) - 1, "exchange on the device", cause);
  }
}

void RankExchange::start_watch() {
  stream_.set_watch([this](std::chrono::nanoseconds waited) { watch(waited); },
                    device_.make_event());
}

void RankExchange::watch(std::chrono::nanoseconds waited) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_look_ < kBetweenLooks) return;
  last_look_ = now;
  try {
    for (const auto& [ranks, group] : groups_) {
      ranks->check_ranks();
      if (group.copies == nullptr || waited < ranks->timeout()) continue;
      const std::string cause =
          str_cat("got no parts of others within ", ranks->timeout().count() / 1000.0, " s");
      ranks->abort(cause);
      throw RankFailure(ranks->rank(), "exchange on the device", cause);
    }
  } catch (...) {
    end_waits();
    throw;
  }
}

void RankExchange::end_waits() {
  for (auto& [ranks, group] : groups_) {
    if (group.copies != nullptr) group.copies->end();
    if (group.links.missing == nullptr) continue;
    std::atomic_ref(*group.links.missing).store(kGone, std::memory_order_release);
  }
}

// ---- exchanges

float* RankExchange::own_planes(const CudaPackedLinear& weight, int num_rows) {
  return own_floats(weight.num_planes() * num_rows * weight.out_features());
}

void RankExchange::sum(const CudaPackedLinear& weight, int num_rows, const FinishParams& finish,
                       const RowExperts& experts) {
  const RankShare& share = weight.share();
  Communicator& ranks = *share.ranks();
  const int64_t plane_floats = num_rows * weight.out_features();
  PeerSumParams params = {.planes = own_planes(weight, num_rows),
                          .fold_order = share.fold_order(),
                          .finish = finish,
                          .experts = experts,
                          .num_rows = num_rows};
  std::vector<int64_t> counts;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    counts.push_back(share.num_planes(rank) * plane_floats);
    params.first_plane[rank + 1] = params.first_plane[rank] + share.num_planes(rank);
  }
  params.links = links_for(ranks, params.planes, counts);
  params.two_shot =
      params.links.has_mailboxes() && ranks.size() > 2 && plane_floats >= kTwoShotElements;
  params.finish.scales = weight.scales();
  kernels_.sum(stream_, params);
}

void RankExchange::gather_outputs(const RankShare& share, int num_rows, float* out) {
  gather_columns(*share.ranks(), share.outputs(), num_rows, out);
}

const float* RankExchange::gather_inputs(const RankShare& share, int num_rows) {
  float* all = all_.get<float>(static_cast<size_t>(num_rows * share.inputs().back()));
  gather_columns(*share.ranks(), share.inputs(), num_rows, all);
  return all;
}

void RankExchange::gather_columns(Communicator& ranks, std::span<const int64_t> bounds,
                                  int num_rows, float* out) {
  GatherColumnsParams params = {.num_rows = num_rows, .out = out, .out_stride = bounds.back()};
  std::vector<int64_t> counts;
  for (size_t rank = 0; rank + 1 < bounds.size(); ++rank) {
    const int64_t width = bounds[rank + 1] - bounds[rank];
    counts.push_back(num_rows * width);
    params.columns[rank] = {.first = {static_cast<int>(bounds[rank])},
                            .count = {static_cast<int>(width)}};
  }
  const auto own = static_cast<size_t>(ranks.rank());
  params.own = own_floats(counts[own]);
  params.own_stride = bounds[own + 1] - bounds[own];
  params.links = links_for(ranks, params.own, counts);
  kernels_.gather_columns(stream_, params);
}

void RankExchange::gather_rows(const RankShare& share, const int32_t* token_ids, int index_offset,
                               int num_rows, int dim, float* out) {
  Communicator& ranks = *share.ranks();
  const std::vector<int64_t> counts(static_cast<size_t>(ranks.size()), int64_t{num_rows} * dim);
  GatherRowsParams params = {.own = own_floats(counts[0]),
                             .token_ids = token_ids,
                             .index_offset = index_offset,
                             .num_rows = num_rows,
                             .dim = dim,
                             .out = out};
  for (int rank = 0; rank < ranks.size(); ++rank) {
    params.first_output[rank + 1] =
        static_cast<int32_t>(share.first_output(rank) + share.num_outputs(rank));
  }
  params.links = links_for(ranks, params.own, counts);
  kernels_.gather_rows(stream_, params);
}

// The first `width` of `stride` columns, without gaps: gather_columns for a group of one.
const float* RankExchange::without_gaps(const float* rows, int num_rows, int stride, int width) {
  float* out = own_floats(int64_t{num_rows} * width);
  GatherColumnsParams params = {
      .own = rows, .own_stride = stride, .num_rows = num_rows, .out = out, .out_stride = width};
  params.columns[0].count[0] = width;
  kernels_.gather_columns(stream_, params);
  return out;
}

const float* RankExchange::gather_heads(const SharedHeads& shared, const float* sums, int num_rows,
                                        int num_outputs, int head_dim) {
  Communicator& ranks = *shared.ranks;
  const int num_q = shared.num_heads() * head_dim;
  const int width = num_q + shared.num_kv_heads() * head_dim;
  float* all = all_.get<float>(static_cast<size_t>(num_rows) * static_cast<size_t>(width));
  GatherColumnsParams params = {.own = sums,
                                .own_stride = num_outputs,
                                .num_rows = num_rows,
                                .out = all,
                                .out_stride = width};
  std::vector<int64_t> counts;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const HeadShare& share = shared.by_rank[rank];
    counts.push_back(num_rows * shared.part_width(rank, head_dim));
    params.columns[rank] = {
        .first = {share.first_head * head_dim, num_q + share.first_kv_head * head_dim},
        .count = {share.num_heads * head_dim, share.num_kv_heads * head_dim}};
  }
  if (group_of(ranks).copies != nullptr) {
    params.own_stride = shared.part_width(ranks.rank(), head_dim);
    params.own = without_gaps(sums, num_rows, num_outputs, static_cast<int>(params.own_stride));
  }
  params.links = links_for(ranks, params.own, counts);
  kernels_.gather_columns(stream_, params);
  return all;
}

const float* RankExchange::gather_values(const SharedHeads& shared, int num_rows, int head_dim) {
  const std::vector<int64_t> bounds = shared.bounds(head_dim);
  float* all = all_.get<float>(static_cast<size_t>(num_rows * bounds.back()));
  gather_columns(*shared.ranks, bounds, num_rows, all);
  return all;
}

}  // namespace specdec::cuda
