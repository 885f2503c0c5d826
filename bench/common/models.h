// The shapes the kernels are measured at.
#pragma once

#include <vector>

namespace specdec::bench {

struct ModelShape {
  const char* name = "";
  int num_layers = 0;
  int hidden = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int intermediate = 0;  // of the gated MLP
  int vocab_size = 0;
};

inline const std::vector<ModelShape>& models() {
  static const std::vector<ModelShape> kModels = {
      {"SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152},
      {"Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864, 151936},
      {"Qwen2.5-1.5B", 28, 1536, 12, 2, 128, 8960, 151936},
  };
  return kModels;
}

// Models that are measured on GPUs.
inline const std::vector<ModelShape>& gpu_models() {
  static const std::vector<ModelShape> kModels = {
      {"Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256},
      {"Llama-3.2-1B", 16, 2048, 32, 8, 64, 8192, 128256},
  };
  return kModels;
}
// For --smoke on the emulated device.
inline constexpr ModelShape kTinyModel = {"tiny", 2, 128, 2, 1, 64, 256, 512};

// Rows of a step: one token, a verification, a batch.
inline const std::vector<int>& step_rows() {
  static const std::vector<int> kRows = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64};
  return kRows;
}
inline constexpr int kPromptRows = 512;

}  // namespace specdec::bench
