//! RCCL and NCCL, which have the same interface under the same names.

use gpu::foreign::Address;

pub(crate) use crate::table::{Handle, Int, LibraryChoice};
use crate::table::{Names, library, numbers};

const STATUSES: &[(Int, &str)] = &[
    (1, "ncclUnhandledCudaError"),
    (2, "ncclSystemError"),
    (3, "ncclInternalError"),
    (4, "ncclInvalidArgument"),
    (5, "ncclInvalidUsage"),
    (6, "ncclRemoteError"),
    (7, "ncclInProgress"),
];

library! {
    /// RCCL | NCCL
    Calls, role "collectives",
    amd Names {
        name: "RCCL", sonames: &["librccl.so.1"],
        status_name: "", status_text: "ncclGetErrorString", statuses: STATUSES, last_words: "",
    },
    nvidia Names {
        name: "NCCL", sonames: &["libnccl.so.2"],
        status_name: "", status_text: "ncclGetErrorString", statuses: STATUSES, last_words: "",
    };
    plain {
        unique_id        | "ncclGetUniqueId"  | "ncclGetUniqueId"  | (id: *mut UniqueId);
        join             | "ncclCommInitRank" | "ncclCommInitRank" | (communicator: *mut Handle, ranks: Int, id: UniqueId, rank: Int);
        destroy          | "ncclCommDestroy"  | "ncclCommDestroy"  | (communicator: Handle);
        abort            | "ncclCommAbort"    | "ncclCommAbort"    | (communicator: Handle);
        asynchronous_error | "ncclCommGetAsyncError" | "ncclCommGetAsyncError" | (communicator: Handle, status: *mut Int);
        group_start      | "ncclGroupStart"   | "ncclGroupStart"   | ();
        group_end        | "ncclGroupEnd"     | "ncclGroupEnd"     | ();
        all_reduce       | "ncclAllReduce"    | "ncclAllReduce"    | (from: Address, to: Address, n: usize, number: LibraryChoice, op: LibraryChoice, communicator: Handle, stream: Handle);
        reduce           | "ncclReduce"       | "ncclReduce"       | (from: Address, to: Address, n: usize, number: LibraryChoice, op: LibraryChoice, root: Int, communicator: Handle, stream: Handle);
        broadcast        | "ncclBroadcast"    | "ncclBroadcast"    | (from: Address, to: Address, n: usize, number: LibraryChoice, root: Int, communicator: Handle, stream: Handle);
        all_gather       | "ncclAllGather"    | "ncclAllGather"    | (from: Address, to: Address, n: usize, number: LibraryChoice, communicator: Handle, stream: Handle);
        reduce_scatter   | "ncclReduceScatter" | "ncclReduceScatter" | (from: Address, to: Address, n: usize, number: LibraryChoice, op: LibraryChoice, communicator: Handle, stream: Handle);
        send             | "ncclSend"         | "ncclSend"         | (from: Address, n: usize, number: LibraryChoice, peer: Int, communicator: Handle, stream: Handle);
        receive          | "ncclRecv"         | "ncclRecv"         | (to: Address, n: usize, number: LibraryChoice, peer: Int, communicator: Handle, stream: Handle);
    }
    typed {}
}

/// What the members of a communicator find each other by: made by one of them, sent to the others by the program's own
/// means, and used once.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UniqueId(pub [u8; 128]);

/// Structs passed to the library, for the check against the headers.
#[doc(hidden)]
pub const SIZES: &[(&str, usize)] = &[("ncclUniqueId", size_of::<UniqueId>())];

numbers! {
    /// What buffers hold.
    pub enum DataType {
        I8 = "ncclInt8" 0 | "ncclInt8" 0;
        U8 = "ncclUint8" 1 | "ncclUint8" 1;
        I32 = "ncclInt32" 2 | "ncclInt32" 2;
        U32 = "ncclUint32" 3 | "ncclUint32" 3;
        I64 = "ncclInt64" 4 | "ncclInt64" 4;
        U64 = "ncclUint64" 5 | "ncclUint64" 5;
        F16 = "ncclFloat16" 6 | "ncclFloat16" 6;
        F32 = "ncclFloat32" 7 | "ncclFloat32" 7;
        F64 = "ncclFloat64" 8 | "ncclFloat64" 8;
        BF16 = "ncclBfloat16" 9 | "ncclBfloat16" 9;
    }
    /// What the members' numbers become one by.
    pub enum Reduction {
        Sum = "ncclSum" 0 | "ncclSum" 0;
        Product = "ncclProd" 1 | "ncclProd" 1;
        Max = "ncclMax" 2 | "ncclMax" 2;
        Min = "ncclMin" 3 | "ncclMin" 3;
        Mean = "ncclAvg" 4 | "ncclAvg" 4;
    }
    /// As listed in `STATUSES`, for the check against the headers.
    #[allow(dead_code, reason = "only `Success` is compared; the others are for the check")]
    pub(crate) enum Status {
        Success = "ncclSuccess" 0 | "ncclSuccess" 0;
        GpuError = "ncclUnhandledCudaError" 1 | "ncclUnhandledCudaError" 1;
        SystemError = "ncclSystemError" 2 | "ncclSystemError" 2;
        InternalError = "ncclInternalError" 3 | "ncclInternalError" 3;
        InvalidArgument = "ncclInvalidArgument" 4 | "ncclInvalidArgument" 4;
        InvalidUsage = "ncclInvalidUsage" 5 | "ncclInvalidUsage" 5;
        RemoteError = "ncclRemoteError" 6 | "ncclRemoteError" 6;
        InProgress = "ncclInProgress" 7 | "ncclInProgress" 7;
    }
}

/// A number that can be sent and reduced.
pub trait Message: gpu::Element {
    const TYPE: DataType;
}

macro_rules! messages {
    ($($ty:ty = $name:ident;)*) => {$(
        impl Message for $ty { const TYPE: DataType = DataType::$name; }
    )*};
}

messages! {
    i8 = I8; u8 = U8; i32 = I32; u32 = U32; i64 = I64; u64 = U64;
    half::f16 = F16; f32 = F32; f64 = F64; half::bf16 = BF16;
}
