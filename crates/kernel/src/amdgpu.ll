; What Rust cannot say about AMD's GPUs: address spaces, scopes of fences and atomics, instructions on whole waves.
; Assembled by `llvm-as amdgpu.ll -o amdgpu.bc` (rustup component llvm-tools, or any LLVM not newer than rustc's).
target datalayout = "e-m:e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32-p7:160:256:256:32-p8:128:128:128:48-p9:192:256:256:32-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024-v2048:2048-n32:64-S32-A5-G1-ni:7:8:9"
target triple = "amdgcn-amd-amdhsa"

; LDS, as much as the launch asks for.
@gpu_launch_sized = external addrspace(3) global [0 x i8], align 16

define linkonce_odr hidden ptr @gpu_shared() alwaysinline nounwind {
  ret ptr addrspacecast (ptr addrspace(3) @gpu_launch_sized to ptr)
}

define linkonce_odr hidden void @gpu_barrier() alwaysinline convergent nounwind {
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  ret void
}

define linkonce_odr hidden void @gpu_device_fence() alwaysinline nounwind {
  fence syncscope("agent") acq_rel
  ret void
}

define linkonce_odr hidden void @gpu_system_fence() alwaysinline nounwind {
  fence acq_rel
  ret void
}

; hidden_block_count_x, an argument that the HIP runtime adds.
define linkonce_odr hidden i32 @gpu_blocks() alwaysinline nounwind {
  %p = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  %n = load i32, ptr addrspace(4) %p, align 4, !invariant.load !0
  ret i32 %n
}

define linkonce_odr hidden i32 @gpu_wave_size() alwaysinline nounwind {
  %n = call i32 @llvm.amdgcn.wavefrontsize()
  ret i32 %n
}

define linkonce_odr hidden i32 @gpu_lane() alwaysinline nounwind {
  %low = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)
  %all = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %low)
  ret i32 %all
}

define linkonce_odr hidden i64 @gpu_ballot(i32 %value) alwaysinline convergent nounwind {
  %bit = icmp ne i32 %value, 0
  %mask = call i64 @llvm.amdgcn.ballot.i64(i1 %bit)
  ret i64 %mask
}

define linkonce_odr hidden i32 @gpu_shuffle(i32 %value, i32 %from) alwaysinline convergent nounwind {
  %byte = shl i32 %from, 2
  %result = call i32 @llvm.amdgcn.ds.bpermute(i32 %byte, i32 %value)
  ret i32 %result
}

; Atomics that one device sees: its memory is neither fine-grained nor another's, so each is one instruction.
define linkonce_odr hidden i32 @gpu_add_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw add ptr %at, i32 %value syncscope("agent") monotonic, align 4, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_max_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw umax ptr %at, i32 %value syncscope("agent") monotonic, align 4, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_min_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw umin ptr %at, i32 %value syncscope("agent") monotonic, align 4, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_or_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw or ptr %at, i32 %value syncscope("agent") monotonic, align 4, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_swap_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw xchg ptr %at, i32 %value syncscope("agent") monotonic, align 4, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_compare_swap_u32(ptr %at, i32 %expected, i32 %value) alwaysinline nounwind {
  %both = cmpxchg ptr %at, i32 %expected, i32 %value syncscope("agent") monotonic monotonic, align 4, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  %old = extractvalue { i32, i1 } %both, 0
  ret i32 %old
}

define linkonce_odr hidden i64 @gpu_add_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw add ptr %at, i64 %value syncscope("agent") monotonic, align 8, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_max_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw umax ptr %at, i64 %value syncscope("agent") monotonic, align 8, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_min_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw umin ptr %at, i64 %value syncscope("agent") monotonic, align 8, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_or_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw or ptr %at, i64 %value syncscope("agent") monotonic, align 8, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_swap_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw xchg ptr %at, i64 %value syncscope("agent") monotonic, align 8, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_compare_swap_u64(ptr %at, i64 %expected, i64 %value) alwaysinline nounwind {
  %both = cmpxchg ptr %at, i64 %expected, i64 %value syncscope("agent") monotonic monotonic, align 8, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  %old = extractvalue { i64, i1 } %both, 0
  ret i64 %old
}

define linkonce_odr hidden float @gpu_add_f32(ptr %at, float %value) alwaysinline nounwind {
  %old = atomicrmw fadd ptr %at, float %value syncscope("agent") monotonic, align 4, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0, !amdgpu.ignore.denormal.mode !0
  ret float %old
}

; Atomics that other devices and the host see. What a bus cannot do, the compiler makes of compare-and-swap.
define linkonce_odr hidden i32 @gpu_system_add_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw add ptr %at, i32 %value monotonic, align 4
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_system_max_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw umax ptr %at, i32 %value monotonic, align 4
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_system_min_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw umin ptr %at, i32 %value monotonic, align 4
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_system_or_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw or ptr %at, i32 %value monotonic, align 4
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_system_swap_u32(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw xchg ptr %at, i32 %value monotonic, align 4
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_system_compare_swap_u32(ptr %at, i32 %expected, i32 %value) alwaysinline nounwind {
  %both = cmpxchg ptr %at, i32 %expected, i32 %value monotonic monotonic, align 4
  %old = extractvalue { i32, i1 } %both, 0
  ret i32 %old
}

define linkonce_odr hidden i64 @gpu_system_add_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw add ptr %at, i64 %value monotonic, align 8
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_system_max_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw umax ptr %at, i64 %value monotonic, align 8
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_system_min_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw umin ptr %at, i64 %value monotonic, align 8
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_system_or_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw or ptr %at, i64 %value monotonic, align 8
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_system_swap_u64(ptr %at, i64 %value) alwaysinline nounwind {
  %old = atomicrmw xchg ptr %at, i64 %value monotonic, align 8
  ret i64 %old
}

define linkonce_odr hidden i64 @gpu_system_compare_swap_u64(ptr %at, i64 %expected, i64 %value) alwaysinline nounwind {
  %both = cmpxchg ptr %at, i64 %expected, i64 %value monotonic monotonic, align 8
  %old = extractvalue { i64, i1 } %both, 0
  ret i64 %old
}

define linkonce_odr hidden float @gpu_system_add_f32(ptr %at, float %value) alwaysinline nounwind {
  %old = atomicrmw fadd ptr %at, float %value monotonic, align 4, !amdgpu.ignore.denormal.mode !0
  ret float %old
}

declare void @llvm.amdgcn.s.barrier()
declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
declare i32 @llvm.amdgcn.wavefrontsize()
declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)
declare i32 @llvm.amdgcn.mbcnt.hi(i32, i32)
declare i64 @llvm.amdgcn.ballot.i64(i1)
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)
!0 = !{}
