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

define linkonce_odr hidden i32 @gpu_fetch_add(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw add ptr %at, i32 %value syncscope("agent") monotonic, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_fetch_max(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw umax ptr %at, i32 %value syncscope("agent") monotonic, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_fetch_min(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw umin ptr %at, i32 %value syncscope("agent") monotonic, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i32 %old
}

define linkonce_odr hidden i32 @gpu_fetch_or(ptr %at, i32 %value) alwaysinline nounwind {
  %old = atomicrmw or ptr %at, i32 %value syncscope("agent") monotonic, !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0
  ret i32 %old
}

declare void @llvm.amdgcn.s.barrier()
declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
declare i32 @llvm.amdgcn.wavefrontsize()
declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)
declare i32 @llvm.amdgcn.mbcnt.hi(i32, i32)
declare i64 @llvm.amdgcn.ballot.i64(i1)
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)
!0 = !{}
