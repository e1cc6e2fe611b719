// griddepcontrol: a launch that begins while the one before it ends.
//
// PTX ISA "Parallel Synchronization and Communication: griddepcontrol". sm_90 and later; the later
// launch must ask for it. The emulator runs launches one after the other, whatever these say.
#pragma once

#include "flashsmith/base/types.cuh"

namespace flashsmith::ptx {

// The next launch may begin once every cta has come here, or ended.
FS_DEVICE void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// The launch before has ended, and what it wrote is seen.
FS_DEVICE void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace flashsmith::ptx
