// One rank of a group that mpirun starts; mpi_communicator_test.cc does: mpi_rank LIBRARY CASE
// REPORT. Operations at random must bring what the list of operations says; or a rank ends as CASE
// says. REPORT is a file that gets a line of each rank.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "comm/mpi_communicator.h"
#include "core/check.h"
#include "cpp/comm/communicator_kinds.h"

namespace specdec {
namespace {

using namespace std::chrono_literals;

void run_operations(Communicator& ranks) {
  std::mt19937 list(5);
  const auto upto = [&](size_t limit) { return static_cast<size_t>(list() % (limit + 1)); };
  const int size = ranks.size(), own = ranks.rank();
  const auto pair = own < 2 ? ranks.subgroup(0, std::min(2, size)) : nullptr;
  for (int number = 0; number < 1000; ++number) {
    const size_t operation = upto(3), n = upto(number == 500 ? 20'000'000 : 20'000);
    const int from = static_cast<int>(upto(size - 1)), to = (from + 1) % size;
    if (operation == 3 && size == 1) continue;
    if (operation <= 1) {
      Communicator* group = operation == 0 ? &ranks : pair.get();
      if (group == nullptr) continue;
      std::memcpy(group->part(n / (own + 1)), test_bytes(number, own, n / (own + 1)).data(),
                  n / (own + 1));
      const auto parts = group->exchange(n / (own + 1));
      for (int rank = 0; rank < group->size(); ++rank)
        SPECDEC_CHECK(same_bytes(parts[rank], test_bytes(number, rank, n / (rank + 1))));
    } else if (operation == 2) {
      std::vector<std::byte> message;
      const auto bytes = test_bytes(number, from, n);
      if (own == from) message.assign(bytes.begin(), bytes.end());
      ranks.broadcast(message, from, Patience::kForever);
      SPECDEC_CHECK(same_bytes(message, bytes));
    } else {
      std::vector<std::byte> message(n);
      if (own == from) ranks.send(to, test_bytes(number, from, n));
      if (own == to) ranks.receive(from, message);
      if (own == to) SPECDEC_CHECK(same_bytes(message, test_bytes(number, from, n)));
    }
  }
  ranks.barrier();
}

// Of all ranks. mpirun ends all when the first ends, and would lose what they print then.
class Report {
 public:
  explicit Report(const std::string& file) : file_(file) {}
  void add(const std::string& line) { std::ofstream(file_, std::ios::app) << line + "\n"; }
  // Waits until so many ranks have reported, but not for ever.
  void wait_for(int num_ranks) const {
    comes_true([&] {
      std::ifstream file(file_);
      int num_lines = 0;
      for (std::string line; std::getline(file, line);) ++num_lines;
      return num_lines >= num_ranks;
    });
  }

 private:
  std::string file_;
};

int run(const std::string& library, const std::string& ending, Report& report) {
  const auto ranks = join_mpi_group(ending == "late" ? 2s : 20s, library);
  try {
    if (ending == "operations") run_operations(*ranks);
    ranks->barrier();
    if (ending != "operations" && ranks->rank() == ranks->size() - 1) {
      if (ending == "abort") ranks->abort("no memory for weights");
      if (ending == "late") report.wait_for(ranks->size() - 1);  // the others have failed
      if (ending == "leave") return 0;
    }
    ranks->barrier();
    report.add(str_cat("rank ", ranks->rank(), " is done"));
  } catch (const Error& error) {
    report.add(error.what());
  }
  report.wait_for(ending == "leave" ? ranks->size() - 1 : ranks->size());
  return 0;
}

}  // namespace
}  // namespace specdec

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    specdec::Report report(argv[3]);
    return specdec::run(argv[1], argv[2], report);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
