#include "runtime/seat_messages.h"

#include <array>
#include <type_traits>
#include <utility>

#include "core/check.h"

namespace specdec {
namespace {

// A seat without its lists.
struct SeatHeader {
  int num_tokens = 0;
  int num_prompt_tokens = 0;
  int max_num_tokens = 0;
  int num_seen = 0;
  int max_depth = 0;
  int min_tokens = 0;
  bool is_active = false;
  SampleRow sampling;
  int32_t state_slot = -1;
  std::array<int32_t, 2> first_records = {};
};
static_assert(std::is_trivially_copyable_v<SampleRow>);

struct PlanHeader {
  int num_seats = 0;
  int num_passes = 0;
  int max_unseen = 0;
  int num_drafts = 0;
  int num_masks = 0;
  bool want_logprobs = false;
};

template <class T>
void put_list(MessageWriter& writer, std::span<const T> values) {
  writer.put(values.size());
  writer.put_all(values);
}
template <class T>
std::span<const T> get_list(MessageReader& reader) {
  return reader.get_all<T>(reader.get<size_t>());
}

void put_bias(MessageWriter& writer, std::span<const std::pair<int32_t, float>> bias) {
  writer.put(bias.size());
  for (const auto& [token_id, value] : bias) {
    writer.put(token_id);
    writer.put(value);
  }
}
std::vector<std::pair<int32_t, float>> get_bias(MessageReader& reader) {
  std::vector<std::pair<int32_t, float>> bias(reader.get<size_t>());
  for (auto& [token_id, value] : bias) {
    token_id = reader.get<int32_t>();
    value = reader.get<float>();
  }
  return bias;
}

void put_seat(MessageWriter& writer, const DeviceSeat& seat) {
  SeatHeader header = {.num_tokens = seat.num_tokens,
                       .num_prompt_tokens = seat.num_prompt_tokens,
                       .max_num_tokens = seat.max_num_tokens,
                       .num_seen = seat.num_seen,
                       .max_depth = seat.max_depth,
                       .min_tokens = seat.min_tokens,
                       .is_active = seat.is_active,
                       .sampling = seat.sampling,
                       .state_slot = seat.state.slot,
                       .first_records = seat.state.first_records};
  // A seat has no such thing: the first would be the host's, the others come with each step.
  const SampleRow& row = seat.sampling;
  SPECDEC_CHECK(row.processor == nullptr && row.given_logits == nullptr);
  SPECDEC_CHECK(row.distribution == nullptr && row.allowed_mask.empty());
  header.sampling.counts = {};
  header.sampling.logit_bias = {};
  header.sampling.allowed_token_ids = {};
  header.sampling.banned_token_ids = {};
  writer.put(header);
  put_list(writer, seat.tokens);
  put_list(writer, std::span<const int32_t>(seat.stop_token_ids));
  put_list(writer, seat.blocks);
  put_list(writer, seat.state.pending);
  put_list(writer, row.counts);
  put_bias(writer, row.logit_bias);
  put_list(writer, row.allowed_token_ids);
  put_list(writer, row.banned_token_ids);
}

}  // namespace

void put_seats(MessageWriter& writer, std::span<const DeviceSeat> seats) {
  writer.put(seats.size());
  for (const DeviceSeat& seat : seats) put_seat(writer, seat);
}

void put_plan(MessageWriter& writer, const DeviceStepPlan& plan) {
  writer.put(PlanHeader{.num_seats = plan.num_seats,
                        .num_passes = plan.num_passes,
                        .max_unseen = plan.max_unseen,
                        .num_drafts = static_cast<int>(plan.host_drafts.size()),
                        .num_masks = static_cast<int>(plan.masks.size()),
                        .want_logprobs = plan.want_logprobs});
  put_list(writer, plan.kept_slots);
  for (const HostDraft& draft : plan.host_drafts) {
    writer.put(draft.seat);
    put_list(writer, draft.tokens);
    put_list(writer, draft.parents);
  }
  for (const HostMasks& masks : plan.masks) {
    writer.put(masks.seat);
    writer.put(masks.nodes.size());
    for (const std::span<const uint32_t> node : masks.nodes) put_list(writer, node);
  }
}

std::span<const DeviceSeat> SeatMessages::get_seats(MessageReader& reader) {
  seats_.resize(reader.get<size_t>());
  biases_.resize(seats_.size());
  for (size_t i = 0; i < seats_.size(); ++i) {
    const auto header = reader.get<SeatHeader>();
    DeviceSeat& seat = seats_[i];
    seat.is_active = header.is_active;
    seat.num_tokens = header.num_tokens;
    seat.num_prompt_tokens = header.num_prompt_tokens;
    seat.max_num_tokens = header.max_num_tokens;
    seat.num_seen = header.num_seen;
    seat.max_depth = header.max_depth;
    seat.min_tokens = header.min_tokens;
    seat.sampling = header.sampling;
    seat.tokens = get_list<int32_t>(reader);
    const auto stops = get_list<int32_t>(reader);
    seat.stop_token_ids.assign(stops.begin(), stops.end());
    seat.blocks = get_list<int32_t>(reader);
    seat.state = {.slot = header.state_slot,
                  .first_records = header.first_records,
                  .pending = get_list<int32_t>(reader)};
    seat.sampling.counts = get_list<TokenCount>(reader);
    biases_[i] = get_bias(reader);
    seat.sampling.logit_bias = biases_[i];
    seat.sampling.allowed_token_ids = get_list<int32_t>(reader);
    seat.sampling.banned_token_ids = get_list<int32_t>(reader);
  }
  return seats_;
}

DeviceStepPlan SeatMessages::get_plan(MessageReader& reader) {
  const auto header = reader.get<PlanHeader>();
  const auto kept_slots = get_list<KeptSlot>(reader);
  drafts_.resize(static_cast<size_t>(header.num_drafts));
  for (HostDraft& draft : drafts_) {
    draft.seat = reader.get<int>();
    draft.tokens = get_list<int32_t>(reader);
    draft.parents = get_list<int32_t>(reader);
  }
  masks_.resize(static_cast<size_t>(header.num_masks));
  for (HostMasks& masks : masks_) {
    masks.seat = reader.get<int>();
    masks.nodes.resize(reader.get<size_t>());
    for (std::span<const uint32_t>& node : masks.nodes) node = get_list<uint32_t>(reader);
  }
  return {.num_seats = header.num_seats,
          .num_passes = header.num_passes,
          .host_drafts = drafts_,
          .masks = masks_,
          .kept_slots = kept_slots,
          .max_unseen = header.max_unseen,
          .want_logprobs = header.want_logprobs};
}

}  // namespace specdec
