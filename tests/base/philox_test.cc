#include "base/philox.h"

#include "tests/catch.h"

using namespace tilefold;

// Known answers published with the Random123 library (philox4x32, 10 rounds).
TEST_CASE("Philox4x32-10 gives the published words") {
  CHECK(Philox::random(0, {0, 0, 0, 0}) ==
        Philox::Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox::random(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
        Philox::Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox::random(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        Philox::Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}
