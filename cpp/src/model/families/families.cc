#include <array>

#include "model/families/family.h"

namespace specdec {

// Each in the file named after it, or after those that it is like.
extern const Family kApertus, kArcee, kCohere, kCohere2, kCwm, kDots1, kErnie4_5, kErnie4_5Moe,
    kExaone4, kGemma, kGemma2, kGemma3, kGemma3n, kGemma4, kGemma4Unified, kGlm, kGlm4, kGlm4Moe,
    kGptNeox, kGptOss, kGranite, kGraniteMoe, kGraniteMoeHybrid, kGraniteMoeShared, kGraniteMoeSwa,
    kGraniteSwa, kHelium, kHunYuanDense, kHyperClovaX, kInternLm3, kJais2, kLfm2, kLfm2Moe, kLlama,
    kMellum, kMiMo, kMiniCpm, kMinistral, kMinistral3, kMistral, kMixtral, kNemotron, kOlmo2,
    kOlmo3, kOlmoe, kOpt, kPhi3, kQwen2, kQwen2Moe, kQwen3, kQwen3Moe, kQwen3Next, kQwen3_5,
    kQwen3_5Moe, kSeedOss, kSmolLm3, kSolarOpen, kStableLm, kStarcoder2, kVaultGemma;

std::span<const Family* const> families() {
  static constexpr std::array kFamilies = {
      &kLlama,
      &kMistral,
      &kQwen2,
      &kQwen3,
      &kOpt,
      &kMixtral,
      &kQwen3Moe,
      &kGemma2,
      &kGemma3,
      &kPhi3,
      &kGranite,
      &kOlmo2,
      &kGptNeox,
      &kApertus,
      &kArcee,
      &kCohere,
      &kCohere2,
      &kCwm,
      &kDots1,
      &kErnie4_5,
      &kErnie4_5Moe,
      &kExaone4,
      &kGemma,
      &kGemma3n,
      &kGemma4,
      &kGemma4Unified,
      &kGlm,
      &kGlm4,
      &kGlm4Moe,
      &kGptOss,
      &kGraniteMoe,
      &kGraniteMoeHybrid,
      &kGraniteMoeShared,
      &kGraniteMoeSwa,
      &kGraniteSwa,
      &kHelium,
      &kHunYuanDense,
      &kHyperClovaX,
      &kInternLm3,
      &kJais2,
      &kLfm2,
      &kLfm2Moe,
      &kMellum,
      &kMiMo,
      &kMiniCpm,
      &kMinistral,
      &kMinistral3,
      &kNemotron,
      &kOlmo3,
      &kOlmoe,
      &kQwen2Moe,
      &kQwen3Next,
      &kQwen3_5,
      &kQwen3_5Moe,
      &kSeedOss,
      &kSmolLm3,
      &kSolarOpen,
      &kStableLm,
      &kStarcoder2,
      &kVaultGemma,
  };
  return kFamilies;
}

}  // namespace specdec
