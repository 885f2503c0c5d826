// Ranks as processes that are killed, stopped and end. This process is rank 0.
#include "comm/shm_communicator.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "comm/shared_region.h"
#include "core/str_cat.h"
#include "cpp/comm/communicator_kinds.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A process that runs a body, which returns what it has to report.
class Child {
 public:
  explicit Child(const std::function<std::string()>& body) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    id_ = fork();
    if (id_ == 0) {
      close(ends[0]);
      std::string report;
      try {
        report = body();
      } catch (const std::exception& error) {
        report = error.what();
      }
      _exit(write(ends[1], report.data(), report.size()) < 0);
    }
    close(ends[1]);
    report_ = ends[0];
  }
  ~Child() {
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
    close(report_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) { kill(id_, number); }
  pid_t id() const { return id_; }
  // Once the process has ended.
  std::string report() {
    std::string text;
    char buffer[512];
    for (ssize_t n; (n = read(report_, buffer, sizeof buffer)) > 0;) text.append(buffer, n);
    return text;
  }

 private:
  pid_t id_;
  int report_;
};

std::vector<std::string> shared_memory_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    if (entry.path().string().find("specdec") != std::string::npos) names.push_back(entry.path());
  return names;
}

class ShmCommunicatorTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(shared_memory_files(), before_); }
  std::vector<std::string> before_ = shared_memory_files();
};

// A timeout that no test should reach: a test that waits for it would hang.
constexpr std::chrono::milliseconds kLongest = 1h;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

TEST_F(ShmCommunicatorTest, ProcessesExchange) {
  constexpr size_t kLarge = (size_t{17} << 20) + 3;
  ShmGroup group(3);
  const auto body = [&](Communicator& ranks) {
    for (int number = 0; number < 2000; ++number) {
      const auto size = [&](int rank) {
        return number == 1000 ? kLarge / (rank + 1) : (number + rank) % 7 * 500;
      };
      std::memcpy(ranks.part(size(ranks.rank())),
                  test_bytes(number, ranks.rank(), size(ranks.rank())).data(), size(ranks.rank()));
      const auto parts = ranks.exchange(size(ranks.rank()));
      for (int rank = 0; rank < 3; ++rank) {
        if (!same_bytes(parts[rank], test_bytes(number, rank, size(rank))))
          return str_cat("exchange ", number, " differs for rank ", rank);
      }
    }
    return std::string("good");
  };
  Child first([&] { return body(*join_shm_group(group.name(), 1, 20s)); });
  Child second([&] { return body(*join_shm_group(group.name(), 2, 20s)); });
  const auto leader = group.join(20s);
  EXPECT_EQ(body(*leader), "good");
  EXPECT_EQ(first.report(), "good");
  EXPECT_EQ(second.report(), "good");
}

// How rank 2 of 3 ends while rank 0 waits for a message of rank 2, and rank 1 does for ever.
struct Ending {
  const char* name;
  int signal;  // 0: the process ends by itself
  const char* cause;
  double earliest_ms;
};
void PrintTo(const Ending& ending, std::ostream* stream) { *stream << ending.name; }
class RankEndsTest : public ShmCommunicatorTest, public ::testing::WithParamInterface<Ending> {};

TEST_P(RankEndsTest, OthersAreTold) {
  const Ending& ending = GetParam();
  const std::chrono::milliseconds timeout = ending.signal == SIGSTOP ? 5s : kLongest;
  ShmGroup group(3);
  Child ended([&] {
    auto ranks = join_shm_group(group.name(), 2, timeout);
    ranks->barrier();
    if (ending.signal != 0) pause();
    if (std::string(ending.name) == "Exits") _exit(0);
    ranks.reset();
    pause();
    return std::string();
  });
  Child worker([&] {
    const auto ranks = join_shm_group(group.name(), 1, timeout);
    ranks->barrier();
    std::vector<std::byte> message;
    ranks->broadcast(message, 2, Patience::kForever);
    return std::string("no failure");
  });
  const auto leader = group.join(timeout);
  leader->barrier();
  const auto start = Clock::now();
  if (ending.signal != 0) ended.signal(ending.signal);
  std::vector<std::byte> message;
  const RankFailure failure = failure_of([&] { leader->broadcast(message, 2); });
  EXPECT_GE(milliseconds_since(start), ending.earliest_ms);
  const std::string others = worker.report();
  EXPECT_EQ(failure.rank(), 2);
  EXPECT_EQ(failure.operation(), "broadcast");
  for (const std::string& text : {std::string(failure.what()), others}) {
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
    EXPECT_NE(text.find(ending.cause), std::string::npos) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    ShmCommunicatorTest, RankEndsTest,
    ::testing::Values(Ending{"Killed", SIGKILL, "has ended", 0},
                      Ending{"Stopped", SIGSTOP, "did not answer within 5 s", 4990},
                      Ending{"Exits", 0, "has ended", 0}, Ending{"Leaves", 0, "left the group", 0}),
    [](const auto& info) { return info.param.name; });

TEST_F(ShmCommunicatorTest, WorkersOfAnIdleLeaderNoticeADeath) {
  ShmGroup group(3);
  Child ended([&] {
    const auto ranks = join_shm_group(group.name(), 2, kLongest);
    pause();
    return std::string();
  });
  Child worker([&] {
    std::vector<std::byte> message;
    join_shm_group(group.name(), 1, kLongest)->broadcast(message, 0, Patience::kForever);
    return std::string();
  });
  const auto leader = group.join(kLongest);
  ended.signal(SIGKILL);
  const std::string report = worker.report();
  EXPECT_EQ(report, str_cat("rank 2 failed in broadcast: process ", ended.id(), " has ended"));
}

TEST_F(ShmCommunicatorTest, AKilledLeaderEndsItsWorkers) {
  Child gone([] {
    ShmGroup group(2);
    return group.name();
  });
  EXPECT_THROW(join_shm_group(gone.report(), 1, 1s), InvalidArgument);

  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Child living([&] {
    ShmGroup group(2);
    EXPECT_GT(write(ends[1], group.name().data(), group.name().size()), 0);
    const auto ranks = group.join(kLongest);
    pause();
    return std::string();
  });
  char name[200] = {};
  ASSERT_GT(read(ends[0], name, sizeof name - 1), 0);
  const auto worker = join_shm_group(name, 1, kLongest);
  living.signal(SIGKILL);
  std::vector<std::byte> message;
  const RankFailure failure =
      failure_of([&] { worker->broadcast(message, 0, Patience::kForever); });
  EXPECT_EQ(failure.rank(), 0);
  EXPECT_NE(std::string(failure.what()).find(str_cat("process ", living.id(), " has ended")),
            std::string::npos)
      << failure.what();
  close(ends[0]);
  close(ends[1]);
}

TEST_F(ShmCommunicatorTest, ARankThatNeverComesFailsJoin) {
  ShmGroup group(3);
  Child worker([&] {
    join_shm_group(group.name(), 1, 10s);
    return std::string("no failure");
  });
  const auto region = SharedRegion::open(group.name());
  ASSERT_TRUE(comes_true([&] { return region->first_missing() == 2; }));  // the worker is there
  const RankFailure failure = failure_of([&] { group.join(300ms); });
  EXPECT_EQ(failure.rank(), 2);
  EXPECT_EQ(failure.operation(), "join");
  const std::string report = worker.report();
  EXPECT_NE(report.find("rank 2"), std::string::npos) << report;
}

TEST_F(ShmCommunicatorTest, NamesAndRanksOfNoGroupAreRefused) {
  const auto field_of = [](const std::string& name, int rank) {
    return testing::refused_field([&] { join_shm_group(name, rank, 100ms); });
  };
  ShmGroup group(2);
  EXPECT_EQ(field_of("", 1), "name");
  EXPECT_EQ(field_of("group", 1), "name");
  EXPECT_EQ(field_of("1:2:3", 1), "name");
  EXPECT_EQ(field_of(str_cat(getpid(), ":0:3"), 1), "name");
  EXPECT_EQ(field_of(group.name() + "1", 1), "name");
  EXPECT_EQ(field_of(group.name(), 2), "rank");
  EXPECT_EQ(field_of(group.name(), -1), "rank");
  EXPECT_EQ(field_of(group.name(), 0), "rank");  // the leader is
  EXPECT_THROW(ShmGroup(0), InvalidArgument);
  EXPECT_THROW(ShmGroup(65), InvalidArgument);
}

}  // namespace
}  // namespace specdec
