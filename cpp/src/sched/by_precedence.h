// Containers of sequences in order of precedence.
#pragma once

#include <algorithm>

#include "core/check.h"
#include "sched/sequence.h"

namespace specdec {

// The position of a sequence, existing or to be inserted, in a container sorted by precedence.
template <class Sequences>
auto position_of(Sequences& sequences, const Sequence& sequence) {
  return std::ranges::lower_bound(sequences, sequence.precedence(), {}, &Sequence::precedence);
}

template <class Sequences>
bool contains(const Sequences& sequences, const Sequence& sequence) {
  const auto position = position_of(sequences, sequence);
  return position != sequences.end() && *position == &sequence;
}

template <class Sequences>
void insert_sorted(Sequences& sequences, Sequence& sequence) {
  const auto position = position_of(sequences, sequence);
  SPECDEC_CHECK(position == sequences.end() || (*position)->precedence() != sequence.precedence());
  sequences.insert(position, &sequence);
}

template <class Sequences>
void erase_sorted(Sequences& sequences, const Sequence& sequence) {
  const auto position = position_of(sequences, sequence);
  SPECDEC_CHECK(position != sequences.end() && *position == &sequence);
  sequences.erase(position);
}

}  // namespace specdec
