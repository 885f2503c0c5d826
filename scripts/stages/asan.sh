# The C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer, where sums take ten times as
# long: with fewer shapes, kernels of the emulated device in one order of threads, and of the tests
# that compare whole engines those whose steps differ.
# minutes: 50
# reads: *CMakeLists.txt CMakePresets.json VERSION cmake cpp cuda tests/cpp tests/cuda tests/testing tests/data
build asan
left_out=(
  '*/EmulatedForward*' '*/EmulatedReverse*' '*.CountsWhatTheHostCounts/*' '*.APrefixHit*DraftedForAlike/*'
  '*Device*.AShortPoolChangesNoAnswer/*' '*Device*.SyntheticAcceptanceFollowsItsRates/*'
  '*DeviceDrafterEngine.RequestsComeAndGo*' '*DeviceDrafterEngine.LaunchesOneByOne*'
  '*DeviceDrafterEngine.AnAdaptiveDepth*' '*DeviceDrafterEngine.TokensThatAHeadDoesNotScore*'
  '*DeviceDrafterEngine.ADrafterFarBehind*' '*DeviceDrafterEngine.Weighed*'
  '*DeviceDrafterEngine.TreesAtTheLongest*' '*DeviceDrafterEngine.AnAborted*/*eagle*' '*DeviceDrafterEngine.AnAborted*/*mlp*'
  '*DeviceRanks.HeadsDraft*' '*DeviceRanks.EveryRankDraftsOrHasAShareOfTheDraftModel/*' '*DeviceRanks.TreesGrowAlikeOnAllRanks/*'
)
SPECDEC_FEW_SHAPES=1 GTEST_FILTER=-$(IFS=:; echo "${left_out[*]}") run_ctest asan
