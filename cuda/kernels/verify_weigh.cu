// Rejection and block verification: a block of threads per request, in double precision like the
// CPU.
#include "cuda/common/exact_math.cuh"
#include "cuda/common/philox.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/verify_passes.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxSegments = kMaxWeighedVocab / kWeighSegment;

// NaN counts as no probability.
__device__ __forceinline__ double positive(double x) { return x > 0.0 ? x : 0.0; }

__device__ __forceinline__ double probability_in(const float* distribution, int size,
                                                 int32_t token) {
  return token >= 0 && token < size ? positive(distribution[token]) : 0.0;
}

// The distribution that a drafted token was drawn from: weights / mass, without the tokens drawn
// from it before at the node, or all probability on the token.
struct Proposal {
  const float* weights;  // null: the token alone, with probability one
  double mass;
  double scale;      // factor of the remainder that the proposal is subtracted from
  double left_mass;  // mass that the subtraction leaves
  int32_t token;
  int32_t distribution;
  int32_t num_before;  // earlier attempts at the node
};

struct WeighShared {
  double segments[kMaxSegments];  // sums of weights over kWeighSegment tokens each
  Proposal failed[kMaxNodeAttempts];
  int32_t attempt_tokens[kMaxNodeAttempts];  // of the attempts made at the node so far
  int32_t attempt_distributions[kMaxNodeAttempts];
  double total;
  int32_t token;
};

// The target's distribution after a node, less the failed proposals.
struct Remainder {
  const WeighShared* shared;
  const float* target;  // [vocab_size]
  int vocab_size;
  int draft_vocab_size;
  int num_failed = 0;

  __device__ __forceinline__ bool drawn_before(const Proposal& proposal, int32_t token) const {
    for (int i = 0; i < proposal.num_before; ++i) {
      if (shared->attempt_tokens[i] == token &&
          shared->attempt_distributions[i] == proposal.distribution) {
        return true;
      }
    }
    return false;
  }

  // The weight of a token, before the remainder is normalised.
  __device__ __forceinline__ double weight(int32_t token) const {
    double left = positive(target[token]);
    for (int i = 0; i < num_failed; ++i) {
      const Proposal& proposal = shared->failed[i];
      if (i > 0) left /= shared->failed[i - 1].left_mass;
      left = product(proposal.scale, left);
      double taken = 0.0;
      if (proposal.weights == nullptr) {
        taken = token == proposal.token ? 1.0 : 0.0;
      } else if (token < draft_vocab_size && !drawn_before(proposal, token)) {
        taken = product(positive(proposal.weights[token]), 1.0 / proposal.mass);
      }
      left = positive(left - taken);
    }
    return left;
  }

  __device__ __forceinline__ double probability(int32_t token) const {
    if (token < 0 || token >= vocab_size) return 0.0;
    return num_failed == 0 ? positive(target[token])
                           : weight(token) / shared->failed[num_failed - 1].left_mass;
  }
};

__device__ __forceinline__ double warp_sum(double sum) {
#pragma unroll
  for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, delta);
  return sum;
}

// The sum of weight_of(0 .. size - 1), added in an order that depends on the size alone. Leaves the
// segments' sums in shared memory.
template <class WeightOf>
__device__ double sum_segments(WeighShared& shared, int size, const WeightOf& weight_of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_segments = (size + kWeighSegment - 1) / kWeighSegment;
  __syncthreads();
  for (int segment = static_cast<int>(threadIdx.x) / 32; segment < num_segments;
       segment += kWarps) {
    const int end = min((segment + 1) * kWeighSegment, size);
    double sum = 0.0;
    for (int i = segment * kWeighSegment + lane; i < end; i += 32) sum += weight_of(i);
    sum = warp_sum(sum);
    if (lane == 0) shared.segments[segment] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    double sum = 0.0;
    for (int i = lane; i < num_segments; i += 32) sum += shared.segments[i];
    sum = warp_sum(sum);
    if (lane == 0) shared.total = sum;
  }
  __syncthreads();
  return shared.total;
}

// The token at which the cumulative weights pass `threshold`, or the last token with any weight if
// rounding keeps the sum below it. Reads the segments' sums, which are in shared memory.
__device__ int32_t find_token(WeighShared& shared, const Remainder& remainder, double threshold) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int size = remainder.vocab_size;
  const int num_segments = (size + kWeighSegment - 1) / kWeighSegment;
  if (threadIdx.x < 32) {
    double before = 0.0;
    double before_last = 0.0;
    int last = 0;
    int segment = 0;
    for (; segment < num_segments; ++segment) {
      const double sum = shared.segments[segment];
      if (before + sum > threshold) break;
      if (sum > 0.0) {
        last = segment;
        before_last = before;
      }
      before += sum;
    }
    if (segment == num_segments) {
      segment = last;
      before = before_last;
    }
    // A lane takes consecutive tokens.
    constexpr int kLaneTokens = kWeighSegment / 32;
    const int begin = segment * kWeighSegment + lane * kLaneTokens;
    const int end = min(begin + kLaneTokens, size);
    double mine = 0.0;
    for (int i = begin; i < end; ++i) mine += remainder.weight(i);
    double sum = mine;
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const double below = __shfl_up_sync(0xffffffffu, sum, delta);
      if (lane >= delta) sum += below;
    }
    const uint32_t passing = __ballot_sync(0xffffffffu, mine > 0.0 && before + sum > threshold);
    const uint32_t weighing = __ballot_sync(0xffffffffu, mine > 0.0);
    const int chosen = passing != 0 ? __ffs(static_cast<int>(passing)) - 1
                                    : 31 - __clz(static_cast<int>(weighing));
    if (weighing == 0) {
      if (lane == 0) shared.token = 0;
    } else if (lane == chosen) {
      double passed = before + (sum - mine);
      for (int i = begin; i < end; ++i) {
        const double weight = remainder.weight(i);
        if (weight == 0.0) continue;
        passed += weight;
        shared.token = i;
        if (passed > threshold) break;
      }
    }
  }
  __syncthreads();
  return shared.token;
}

// The verification of one request. All threads of a block take the same path through it.
struct Weighing {
  const WeighParams& params;
  WeighShared& shared;
  int request;
  int first;  // row of the root
  int num_nodes;
  int attempts_begin, attempts_end;

  __device__ Weighing(const WeighParams& all, WeighShared& memory, int index)
      : params(all),
        shared(memory),
        request(index),
        first(all.trees.cu_rows[index]),
        num_nodes(all.trees.cu_rows[index + 1] - first),
        attempts_begin(all.cu_attempts[index]),
        attempts_end(all.cu_attempts[index + 1]) {}

  __device__ __forceinline__ double uniform(int depth, int index) const {
    return step_uniform(params.trees.seeds[request], params.trees.positions[first], depth, index);
  }
  __device__ __forceinline__ int32_t token_of(int node) const {
    return params.trees.token_ids[first + node];
  }
  __device__ __forceinline__ Remainder remainder_at(int node) const {
    return {&shared, params.target + static_cast<int64_t>(first + node) * params.vocab_size,
            params.vocab_size, params.draft_vocab_size};
  }
  // The first attempt at `node` from index `attempt` on, or attempts_end.
  __device__ __forceinline__ int next_attempt(int node, int attempt) const {
    while (attempt < attempts_end && params.attempts[attempt].parent != node) ++attempt;
    return attempt;
  }
  __device__ __forceinline__ double probability(const Proposal& proposal) const {
    if (proposal.weights == nullptr) return 1.0;
    return probability_in(proposal.weights, params.draft_vocab_size, proposal.token) /
           proposal.mass;
  }

  // The proposal of the index-th attempt at its node. Its mass still includes the tokens drawn
  // before.
  __device__ __forceinline__ Proposal proposal_of(const VerifyAttempt& attempt, int index) const {
    Proposal proposal = {.weights = nullptr,
                         .mass = 1.0,
                         .scale = 1.0,
                         .left_mass = 1.0,
                         .token = token_of(attempt.child),
                         .distribution = attempt.distribution,
                         .num_before = index};
    if (attempt.distribution < 0) return proposal;
    const float* weights =
        params.drafts + static_cast<int64_t>(attempt.distribution) * params.draft_vocab_size;
    if (probability_in(weights, params.draft_vocab_size, proposal.token) > 0.0) {
      proposal.weights = weights;
    }
    return proposal;
  }

  // The same with the right mass. Records the attempt for later ones.
  __device__ Proposal begin_attempt(const VerifyAttempt& attempt, int index, Remainder& remainder) {
    Proposal proposal = proposal_of(attempt, index);
    __syncthreads();
    if (threadIdx.x == 0) {
      shared.attempt_tokens[index] = proposal.token;
      shared.attempt_distributions[index] = attempt.distribution;
    }
    __syncthreads();
    if (proposal.weights == nullptr) return proposal;
    if (remainder.drawn_before(proposal, proposal.token)) {
      proposal.weights = nullptr;
      return proposal;
    }
    bool is_first = true;
    for (int i = 0; i < index; ++i) {
      is_first = is_first && (shared.attempt_distributions[i] != attempt.distribution ||
                              shared.attempt_tokens[i] < 0);
    }
    if (is_first) return proposal;
    proposal.mass = sum_segments(shared, params.draft_vocab_size, [&](int token) {
      return remainder.drawn_before(proposal, token) ? 0.0 : positive(proposal.weights[token]);
    });
    return proposal;
  }

  // Subtracts a failed proposal from the remainder, unless nothing would be left, and returns the
  // mass that is left. The segments then hold its sums.
  __device__ double subtract(const Proposal& proposal, Remainder& remainder) {
    __syncthreads();
    if (threadIdx.x == 0) shared.failed[remainder.num_failed] = proposal;
    __syncthreads();
    ++remainder.num_failed;
    const double mass =
        sum_segments(shared, params.vocab_size, [&](int token) { return remainder.weight(token); });
    if (mass > 0.0) {
      if (threadIdx.x == 0) shared.failed[remainder.num_failed - 1].left_mass = mass;
      __syncthreads();
    } else {
      --remainder.num_failed;
    }
    return mass;
  }

  __device__ int32_t draw(const Remainder& remainder, double coin, bool has_segments) {
    const double total =
        has_segments ? shared.total : sum_segments(shared, params.vocab_size, [&](int token) {
          return remainder.weight(token);
        });
    return find_token(shared, remainder, coin * total);
  }

  __device__ void accept(int depth, int node) const {
    const AcceptedDrafts& out = params.accepted;
    if (threadIdx.x != 0) return;
    out.nodes[static_cast<int64_t>(request) * out.max_depth + depth] = node;
    out.tokens[static_cast<int64_t>(request) * (out.max_depth + 1) + depth] = token_of(node);
  }
  __device__ void finish(int depth, int32_t token) const {
    const AcceptedDrafts& out = params.accepted;
    if (threadIdx.x != 0) return;
    out.tokens[static_cast<int64_t>(request) * (out.max_depth + 1) + depth] = token;
    out.num_accepted[request] = depth;
    out.num_tokens[request] = depth + 1;
  }

  __device__ void run_rejection() {
    int node = 0;
    int depth = 0;
    while (true) {
      Remainder remainder = remainder_at(node);
      bool has_segments = false;
      int accepted = -1;
      int index = 0;
      for (int i = next_attempt(node, attempts_begin); i < attempts_end && accepted < 0;
           i = next_attempt(node, i + 1), ++index) {
        const VerifyAttempt attempt = params.attempts[i];
        const Proposal proposal = begin_attempt(attempt, index, remainder);
        const double scaled = uniform(depth + 1, coin_of(index)) * probability(proposal);
        if (scaled < remainder.probability(proposal.token)) {
          accepted = attempt.child;
        } else {
          has_segments = subtract(proposal, remainder) > 0.0;
        }
      }
      if (accepted < 0) {
        finish(depth, draw(remainder, uniform(depth + 1, kFinalDraw), has_segments));
        return;
      }
      accept(depth++, accepted);
      node = accepted;
    }
  }

  // The proposal of a chain's token after `node`.
  __device__ __forceinline__ Proposal chain_proposal(int node) const {
    return proposal_of(params.attempts[next_attempt(node, attempts_begin)], 0);
  }
  // P_i of the chain's i-th draft, given P_(i - 1): min(P_(i - 1) p / q, 1), where p and q are the
  // target's and the draft's probability of the draft.
  __device__ __forceinline__ double next_weight(double weight, int i) const {
    const Proposal proposal = chain_proposal(i - 1);
    const double backed = weight * remainder_at(i - 1).probability(proposal.token);
    return fmin(backed / probability(proposal), 1.0);
  }

  // The mass of max(P_i p - q, 0) after the chain's i-th draft, which is `node`.
  __device__ double block_residual(int node) {
    double weight = 1.0;
    for (int i = 1; i <= node; ++i) weight = next_weight(weight, i);
    Remainder remainder = remainder_at(node);
    Proposal proposal = chain_proposal(node);
    proposal.scale = weight;
    return subtract(proposal, remainder);
  }

  __device__ void run_block() {
    const int num_drafts = num_nodes - 1;
    double weight = 1.0;
    double accepted_weight = 1.0;
    int num_accepted = 0;
    for (int i = 1; i <= num_drafts; ++i) {
      weight = next_weight(weight, i);
      double chance = weight;
      if (i < num_drafts) {
        const double residual = params.residuals[first + i];
        const double both = residual + (1.0 - weight);
        chance = both > 0.0 ? residual / both : 1.0;
      }
      if (uniform(i, coin_of(0)) <= chance) {
        num_accepted = i;
        accepted_weight = weight;
      }
    }
    for (int i = 0; i < num_accepted; ++i) accept(i, i + 1);
    Remainder remainder = remainder_at(num_accepted);
    bool has_segments = false;
    if (num_accepted < num_drafts) {
      Proposal proposal = chain_proposal(num_accepted);
      proposal.scale = accepted_weight;
      has_segments = subtract(proposal, remainder) > 0.0;
    }
    finish(num_accepted, draw(remainder, uniform(num_accepted + 1, kFinalDraw), has_segments));
  }
};

// The request that a row belongs to, or num_requests for padding. cu_rows: [num_requests + 1].
__device__ __forceinline__ int request_of_row(const int32_t* cu_rows, int num_requests, int row) {
  int low = 0;
  int high = num_requests;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (row < cu_rows[middle + 1]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kThreads, 1) accept_kernel(WeighParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  WeighShared& shared = *reinterpret_cast<WeighShared*>(shared_bytes);
  ptx::wait_for_previous();
  Weighing weighing(params, shared, static_cast<int>(blockIdx.x));
  if (weighing.num_nodes == 0) {
    if (threadIdx.x == 0) {
      params.accepted.num_accepted[blockIdx.x] = params.accepted.num_tokens[blockIdx.x] = 0;
    }
  } else if (params.is_block) {
    weighing.run_block();
  } else {
    weighing.run_rejection();
  }
  ptx::let_next_start();
}

// One block per row of the batch. It has work if the chain has a draft after the row's.
__global__ void __launch_bounds__(kThreads, 1) residual_kernel(WeighParams params) {
  SPECDEC_SHARED_BYTES(shared_bytes);
  WeighShared& shared = *reinterpret_cast<WeighShared*>(shared_bytes);
  ptx::wait_for_previous();
  const int row = static_cast<int>(blockIdx.x);
  const int request = request_of_row(params.trees.cu_rows, params.trees.num_requests, row);
  if (request < params.trees.num_requests) {
    Weighing weighing(params, shared, request);
    const int node = row - weighing.first;
    if (node > 0 && node + 1 < weighing.num_nodes) {
      const double residual = weighing.block_residual(node);
      if (threadIdx.x == 0) params.residuals[row] = residual;
    }
  }
  ptx::let_next_start();
}

}  // namespace

void weigh_drafts(Stream& stream, const WeighParams& params) {
  if (params.trees.num_requests == 0) return;
  LaunchConfig config = {.grid = {static_cast<unsigned>(params.num_rows)},
                         .block = {kThreads},
                         .shared_bytes = sizeof(WeighShared),
                         .overlaps_previous = true};
  if (params.is_block && params.num_rows > 0) {
    launch("verify_block_residuals", stream, residual_kernel, config, params);
  }
  config.grid = {static_cast<unsigned>(params.trees.num_requests)};
  launch("verify_weigh", stream, accept_kernel, config, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
