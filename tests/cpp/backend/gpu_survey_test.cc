#include "cuda/gpu_survey.h"

#include <gtest/gtest.h>

namespace specdec::cuda {
namespace {

GpuSurvey survey_of(std::vector<Gpu> gpus) {
  return {.driver_version = 13000, .runtime_version = 13000, .error = {}, .gpus = std::move(gpus)};
}

TEST(GpuSurvey, KernelsRunOnTheArchitecturesTheyWereBuiltFor) {
  struct Case {
    const char* architectures;
    std::vector<int> runs;
    std::vector<int> does_not;
  };
  for (const Case& one : std::vector<Case>{
           {"90a-real, 80-virtual", {80, 86, 89, 90, 100, 120}, {50, 75}},
           {"90a-real", {90}, {80, 89, 100, 103}},
           {"80-real", {80, 86, 89}, {75, 90}},
           {"86-real, 90a-real", {86, 89, 90}, {80, 100}},
           {"86", {86, 89, 90, 120}, {80}},
           {"100f-real", {100, 103}, {90, 110}},
           {"70-virtual", {80, 90}, {70, 75}},  // the kernels need what came with 8.0
           {"native", {80, 90}, {75}},
           {"", {}, {80, 90}},
       }) {
    for (int capability : one.runs) {
      EXPECT_TRUE(has_kernels_for(capability, one.architectures))
          << capability << " " << one.architectures;
    }
    for (int capability : one.does_not) {
      EXPECT_FALSE(has_kernels_for(capability, one.architectures))
          << capability << " " << one.architectures;
    }
  }
}

TEST(GpuSurvey, EachProblemHasItsOwnMessage) {
  constexpr const char* kArchitectures = "90a-real";
  GpuSurvey no_driver = survey_of({});
  no_driver.driver_version = 0;
  GpuSurvey old_driver = survey_of({});
  old_driver.driver_version = 12040;
  GpuSurvey hidden = survey_of({});
  hidden.error = "no CUDA-capable device is detected";
  const GpuSurvey ampere = survey_of({{.model = "A100", .compute_capability = 80}});
  const GpuSurvey turing = survey_of({{.model = "T4", .compute_capability = 75}});
  struct Case {
    GpuSurvey survey;
    std::vector<const char*> parts;
  };
  for (const Case& one : std::vector<Case>{
           {no_driver, {"no NVIDIA driver"}},
           {old_driver, {"too old", "12.4", "13.0"}},
           {hidden, {"no GPU", "no CUDA-capable device", "CUDA_VISIBLE_DEVICES"}},
           {ampere, {"A100", "8.0", "90a-real", "SPECDEC_CUDA_ARCHS=80"}},
           {turing, {"T4", "7.5", "8.0"}},
       }) {
    const std::string problem = problem_of_gpu(one.survey, 0, kArchitectures);
    for (const char* part : one.parts) {
      EXPECT_NE(problem.find(part), std::string::npos) << problem;
    }
    EXPECT_NE(problem_of(one.survey, kArchitectures).find(problem), std::string::npos);
  }
}

TEST(GpuSurvey, OneGpuThatWorksIsEnough) {
  const GpuSurvey survey = survey_of(
      {{.model = "T4", .compute_capability = 75}, {.model = "H200", .compute_capability = 90}});
  EXPECT_EQ(problem_of(survey, "90a-real"), "");
  EXPECT_NE(problem_of_gpu(survey, 0, "90a-real"), "");
  EXPECT_EQ(problem_of_gpu(survey, 1, "90a-real"), "");
  const std::string missing = problem_of_gpu(survey, 2, "90a-real");
  EXPECT_NE(missing.find("2 GPUs"), std::string::npos) << missing;
}

TEST(GpuSurvey, AnOlderDriverOfTheSameMajorVersionWillDo) {
  GpuSurvey survey = survey_of({{.model = "H200", .compute_capability = 90}});
  survey.runtime_version = 13020;
  EXPECT_EQ(problem_of(survey, "90a-real"), "");
}

}  // namespace
}  // namespace specdec::cuda
