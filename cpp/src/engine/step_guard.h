#pragma once

#include "backend/backend.h"

namespace specdec {

// Keeps the backend's threads hot for the length of a step.
class StepGuard {
 public:
  explicit StepGuard(Backend& backend) : backend_(backend) { backend_.begin_step(); }
  ~StepGuard() { backend_.end_step(); }
  StepGuard(const StepGuard&) = delete;
  StepGuard& operator=(const StepGuard&) = delete;

 private:
  Backend& backend_;
};

}  // namespace specdec
