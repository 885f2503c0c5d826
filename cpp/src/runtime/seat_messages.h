// The inputs of a device step, as bytes for other ranks.
#pragma once

#include <span>
#include <vector>

#include "backend/device_step.h"
#include "core/byte_message.h"

namespace specdec {

void put_seats(MessageWriter& writer, std::span<const DeviceSeat> seats);
void put_plan(MessageWriter& writer, const DeviceStepPlan& plan);

// Reads messages written by the functions above. The results live as long as the object and the
// message.
class SeatMessages {
 public:
  std::span<const DeviceSeat> get_seats(MessageReader& reader);
  DeviceStepPlan get_plan(MessageReader& reader);

 private:
  std::vector<DeviceSeat> seats_;
  std::vector<std::vector<std::pair<int32_t, float>>> biases_;  // of the seats
  std::vector<HostDraft> drafts_;
  std::vector<HostMasks> masks_;
};

}  // namespace specdec
