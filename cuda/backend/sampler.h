// Backend::sample on a device: rows and their lists are uploaded in one copy, results downloaded in
// one.
#pragma once

#include <vector>

#include "backend/op_args.h"
#include "core/buffer.h"
#include "cuda/backend/sample_lists.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/sampling.h"

namespace specdec::cuda {

class DeviceSampler {
 public:
  // Device and stream are borrowed.
  DeviceSampler(Device& device, Stream& stream, const SamplingKernels& kernels);

  // args.logits is device memory; distributions and results are host memory. Waits for the stream.
  void sample(const SampleArgs& args);

 private:
  // The data that one call uploads.
  struct Request {
    std::vector<DeviceSampleRow> rows;
    SampleLists lists;
    int max_candidates = 0;
    int max_logprobs = 0;
    int num_vectors = 0;     // [vocab_size] each: distributions and reported logits
    bool keeps_raw = false;  // some row with edits reports raw logprobs

    void clear();
  };

  // Spreads logits of a draft head that scores part of the target's vocabulary.
  SampleArgs spread(const SampleArgs& args);
  void pack(const SampleArgs& args);
  void point_to_vectors(const SampleArgs& args);
  SampleRowsParams upload(const SampleArgs& args);
  void download(const SampleArgs& args, const SampleRowsParams& params);
  void read_row(const SampleArgs& args, size_t row, const SampleOutputs& outputs,
                const SampleState& state);

  Device& device_;
  Stream& stream_;
  SamplingKernels kernels_;
  Request request_;
  Buffer pinned_in_, device_in_;
  Buffer pinned_out_, device_out_;
  Buffer workspace_;
  Buffer processed_;                          // [num_rows, vocab_size]
  Buffer spread_logits_;                      // [num_rows, target_vocab_size]
  Buffer vectors_;                            // [num_vectors, vocab_size]
  std::vector<std::vector<float>> reported_;  // [num_rows][vocab_size], for long lists of logprobs
};

}  // namespace specdec::cuda
